// SPDX-License-Identifier: Apache-2.0
// Follow what is in progress, and say while one types whether a device profile can be met.
(function () {
  'use strict';

  // An element with data-accelerator-refresh is read again from its page at that interval, in
  // milliseconds, until the page leaves the attribute out.
  function follow(element) {
    var interval = Number(element.dataset.acceleratorRefresh);
    if (!interval) { return; }
    window.setTimeout(function () {
      fetch(window.location.href, {credentials: 'same-origin'}).then(function (answer) {
        if (!answer.ok) { throw new Error(String(answer.status)); }
        return answer.text();
      }).then(function (text) {
        var page = new DOMParser().parseFromString(text, 'text/html');
        var newer = page.getElementById(element.id);
        if (!newer) { return; }
        element.replaceWith(newer);
        follow(newer);
      }).catch(function () {
        // The service or the network may return: ask less often.
        element.dataset.acceleratorRefresh = String(Math.min(interval * 2, 30000));
        follow(element);
      });
    }, interval);
  }

  // While one types groups of a profile, ask the service what they mean.
  function check(verdict) {
    var groups = document.getElementById('id_groups');
    var json = document.getElementById('groups_json');
    var room = document.getElementById('room');
    var token = document.querySelector('input[name=csrfmiddlewaretoken]');
    var timer = null, last = 0;
    function ask() {
      var own = ++last;
      var body = new URLSearchParams({groups: groups.value});
      fetch(verdict.dataset.url, {
        method: 'POST',
        credentials: 'same-origin',
        headers: {'X-CSRFToken': token.value},
        body: body
      }).then(function (answer) { return answer.json(); }).then(function (said) {
        // An answer to an earlier question says nothing about this text.
        if (own !== last) { return; }
        verdict.textContent = said.sentence;
        verdict.className = said.word ? 'accelerator-verdict-' + said.word.replace(' ', '-') : '';
        room.textContent = said.room;
        json.textContent = said.json || '{}';
      }).catch(function () {
        if (own === last) { verdict.textContent = room.textContent = ''; }
      });
    }
    groups.addEventListener('input', function () {
      window.clearTimeout(timer);
      timer = window.setTimeout(ask, 400);
    });
    document.getElementById('builder_add').addEventListener('click', function () {
      var chosen = document.getElementById('builder_traits').selectedOptions;
      var parts = ['resources:' + document.getElementById('builder_class').value + '=' +
        document.getElementById('builder_amount').value];
      Array.prototype.forEach.call(chosen, function (option) {
        parts.push('trait:' + option.value + '=required');
      });
      groups.value = (groups.value.trim() ? groups.value.trim() + '\n' : '') + parts.join(', ');
      ask();
    });
    if (groups.value.trim()) { ask(); }
  }

  document.addEventListener('DOMContentLoaded', function () {
    var verdict = document.getElementById('verdict');
    if (verdict) { check(verdict); }
    document.querySelectorAll('[data-accelerator-refresh]').forEach(follow);
  });
}());

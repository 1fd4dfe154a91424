# SPDX-License-Identifier: Apache-2.0
"""Files in the shapes in which deployment tools write them; the words and values are our own."""

from typing import Final

from cyborg.tests.fixtures.processes import Options

#: The pipeline of kolla-ansible and openstack-helm: no http_proxy_to_wsgi, filters by old names.
PASTE: Final = """\
[pipeline:main]
pipeline = cors request_id authtoken api_v2

[app:api_v2]
paste.app_factory = cyborg.api.app:app_factory

[filter:request_id]
paste.filter_factory = oslo_middleware:RequestId.factory

[filter:authtoken]
paste.filter_factory = cyborg.api.middleware.auth_token:AuthTokenMiddleware.factory
acl_public_routes = /, /v2

[filter:cors]
paste.filter_factory = oslo_middleware.cors:filter_factory
oslo_config_project = cyborg

[filter:osprofiler]
paste.filter_factory = cyborg.common.profiler:WsgiMiddleware.factory
"""

#: uWSGI as kolla-ansible starts it: a router in front of the workers, applications loaded late.
KOLLA_UWSGI: Final = """\
[uwsgi]
add-header = Connection: close
buffer-size = 65535
enable-threads = true
exit-on-reload = true
die-on-term = true
hook-master-start = unix_signal:15 gracefully_kill_them_all
http = fd://{socket}
lazy-apps = true
logto2 = {directory}/cyborg-api-uwsgi.log
master = true
module = cyborg.wsgi.api:application
need-app = true
processes = 2
procname-prefix-spaced = cyborg-api
stats = {directory}/stats.sock
thunder-lock = true
uid = cyborg
virtualenv = {environment}
worker-reload-mercy = 80
"""

#: Logging as openstack-helm mounts it for ``--log-config-append``.
HELM_LOGGING: Final = """\
[loggers]
keys = root,cyborg

[handlers]
keys = stdout,null

[formatters]
keys = context

[logger_root]
level = WARNING
handlers = null

[logger_cyborg]
level = INFO
handlers = stdout
qualname = cyborg

[handler_null]
class = logging.NullHandler
formatter = context
args = ()

[handler_stdout]
class = StreamHandler
args = (sys.stdout,)
formatter = context

[formatter_context]
class = oslo_log.formatters.ContextFormatter
"""

#: Every option that kolla-ansible is known to write, and others that its operators add.
KOLLA: Final[Options] = {
    "DEFAULT": {
        "debug": "false",
        "auth_strategy": "keystone",
        "log_dir": "/var/log/kolla/cyborg",
        "state_path": "/var/lib/cyborg",
        "transport_url": "rabbit://openstack:secret@192.0.2.1:5672//",
        "use_stderr": "false",
        "use_syslog": "false",
        "host": "compute-1",
        "periodic_interval": 60,
        "thread_pool_size": 10,
        "bind_timeout": 60,
        "pybasedir": "/usr/lib/python3/dist-packages/cyborg",
        "bindir": "/usr/bin",
        "log_file": "cyborg-api.log",
    },
    "api": {
        "host_ip": "192.0.2.1",
        "port": 6666,
        "api_workers": 4,
        "enable_ssl_api": "false",
        "public_endpoint": "https://cloud.example.org:6666",
        "api_paste_config": "/etc/cyborg/api-paste.ini",
        "ramdisk_heartbeat_timeout": 300,
    },
    "agent": {
        "enabled_drivers": "pci_driver",
        "resource_provider_startup_retries": 4,
        "resource_provider_name": "compute-1.example.org",
    },
    "conductor": {"automated_clean": "false"},
    "keystone": {"region_name": "RegionOne"},
    "database": {
        "connection": "mysql+pymysql://cyborg:secret@192.0.2.1:3306/cyborg?ssl_ca=/etc/ssl/ca.pem",
        "connection_recycle_time": 10,
        "max_pool_size": 1,
        "max_retries": -1,
    },
    "keystone_authtoken": {
        "auth_type": "password",
        "auth_url": "https://192.0.2.1:5000",
        "www_authenticate_uri": "https://192.0.2.1:5000",
        "cafile": "/etc/ssl/ca.pem",
        "region_name": "RegionOne",
        "memcache_security_strategy": "ENCRYPT",
        "memcache_secret_key": "secret",
        "memcached_servers": "192.0.2.1:11211",
        "service_type": "accelerator",
        "service_token_roles_required": "true",
        "service_token_roles": "service",
    },
    "placement": {
        "auth_type": "password",
        "auth_url": "https://192.0.2.1:5000",
        "cafile": "/etc/ssl/ca.pem",
        "endpoint_type": "internal",
        "region_name": "RegionOne",
        "username": "placement",
        "password": "secret",
        "project_name": "service",
        "project_domain_name": "Default",
        "user_domain_name": "Default",
    },
    "nova": {
        "auth_type": "password",
        "auth_url": "https://192.0.2.1:5000",
        "endpoint_type": "internal",
        "username": "nova",
        "password": "secret",
        "project_name": "service",
        "project_domain_name": "Default",
        "user_domain_name": "Default",
    },
    "glance": {"valid_interfaces": "internal", "num_retries": 3},
    "service_user": {"send_service_user_token": "true", "auth_type": "password"},
    "oslo_concurrency": {"lock_path": "/var/lib/cyborg/tmp"},
    "oslo_messaging_notifications": {
        "driver": "messagingv2",
        "topics": "notifications",
        "transport_url": "rabbit://openstack:secret@192.0.2.1:5672//",
    },
    "oslo_messaging_rabbit": {
        "rabbit_quorum_queue": "true",
        "rabbit_stream_fanout": "true",
        "rabbit_transient_quorum_queue": "true",
        "rabbit_qos_prefetch_count": 1,
        "use_queue_manager": "true",
        "ssl": "true",
        "ssl_ca_file": "/etc/ssl/ca.pem",
    },
    "oslo_policy": {"policy_file": "policy.yaml"},
    "oslo_middleware": {"enable_proxy_headers_parsing": "true"},
    "cors": {"allowed_origin": "https://dashboard.example.org"},
    "pci": {"passthrough_whitelist": '[{"vendor_id": "10de"}]'},
    "gpu_devices": {"enabled_vgpu_types": "nvidia-35", "filter_sriov_vfs": "true"},
    "nic_devices": {"enabled_nic_types": "x710_static"},
}

-- A database of the existing service, release 17.0.0, as its own schema command made it on MariaDB,
-- used by three hosts with the fake driver: one device disabled, ARQs Bound (5), Unbound and Initial.
SET FOREIGN_KEY_CHECKS=0;
DROP TABLE IF EXISTS `alembic_version`;
CREATE TABLE `alembic_version` (
  `version_num` varchar(32) NOT NULL,
  PRIMARY KEY (`version_num`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
INSERT INTO `alembic_version` VALUES
('b47c8f2d1e3a');
DROP TABLE IF EXISTS `attach_handles`;
CREATE TABLE `attach_handles` (
  `created_at` datetime DEFAULT NULL,
  `updated_at` datetime DEFAULT NULL,
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `uuid` varchar(36) NOT NULL,
  `deployable_id` int(11) NOT NULL,
  `cpid_id` int(11) NOT NULL,
  `in_use` tinyint(1) DEFAULT NULL,
  `attach_type` enum('PCI','MDEV','TEST_PCI') NOT NULL,
  `attach_info` varchar(255) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uuid` (`uuid`),
  KEY `attach_handles_deployable_id_idx` (`deployable_id`),
  KEY `attach_handles_cpid_id_idx` (`cpid_id`),
  CONSTRAINT `attach_handles_ibfk_1` FOREIGN KEY (`deployable_id`) REFERENCES `deployables` (`id`),
  CONSTRAINT `attach_handles_ibfk_2` FOREIGN KEY (`cpid_id`) REFERENCES `controlpath_ids` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=49 DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
INSERT INTO `attach_handles` VALUES
('2026-11-20 11:28:00','2026-11-20 11:28:02',1,'3e921e20-8e6e-4e29-848f-a02a174904b8',1,1,1,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"1\"}'),
('2026-11-20 11:28:00','2026-11-20 11:28:03',2,'ffbcb48b-5447-4536-8411-17dab7c549cf',1,1,1,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"2\"}'),
('2026-11-20 11:28:00',NULL,3,'6427c61d-7f53-43d4-af94-5a92abebb2a7',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"3\"}'),
('2026-11-20 11:28:00','2026-11-20 11:28:02',4,'221794af-407b-4206-8e59-b6904cf3ee15',2,2,1,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"1\"}'),
('2026-11-20 11:28:00',NULL,5,'53fda26e-3eb6-42b4-b67e-8b932b8ff334',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"4\"}'),
('2026-11-20 11:28:00','2026-11-20 11:28:03',6,'a38b1429-35fe-48ff-bb59-0f5dd7ea870a',2,2,1,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"2\"}'),
('2026-11-20 11:28:00',NULL,7,'46cb0eb4-6d83-4405-8cda-f325eb24fb39',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"5\"}'),
('2026-11-20 11:28:00',NULL,8,'b49157a5-37a9-473c-a6ad-c2dde85eac99',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"3\"}'),
('2026-11-20 11:28:00',NULL,9,'26775aa1-e49b-46ea-bdcc-7b54b50af228',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"6\"}'),
('2026-11-20 11:28:00',NULL,10,'591c45ba-7f39-4f5d-be8b-7a3ff0f02de9',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"4\"}'),
('2026-11-20 11:28:00',NULL,11,'29fb5911-e7de-48cd-a8d8-d665018fb74f',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"7\"}'),
('2026-11-20 11:28:00',NULL,12,'f250901b-9b73-4c96-aefd-749b15a5a74d',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"5\"}'),
('2026-11-20 11:28:00',NULL,13,'49b79441-7283-4993-9a7f-6ec0c9606c8f',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"0\"}'),
('2026-11-20 11:28:00',NULL,14,'89c83b7b-6acd-4d85-82ad-1d1004e8b9bf',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"6\"}'),
('2026-11-20 11:28:00',NULL,15,'ec63139a-06f0-451c-9659-d2692eff36da',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"1\"}'),
('2026-11-20 11:28:00',NULL,16,'b409763a-627a-49b8-a9b8-4fe560b5f48d',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"7\"}'),
('2026-11-20 11:28:00',NULL,17,'18077d9b-2643-4f5f-a89a-42c5edd73579',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"2\"}'),
('2026-11-20 11:28:00',NULL,18,'95e67eab-788a-47d7-af4f-463627bfa0b3',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"0\"}'),
('2026-11-20 11:28:00',NULL,19,'ed1d2219-213e-4bd4-8e41-eb12dc4bde81',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"3\"}'),
('2026-11-20 11:28:00',NULL,20,'b07a778b-e344-48c3-b05d-66ccb6d2fe2f',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"4\"}'),
('2026-11-20 11:28:00',NULL,21,'7282fd53-9adb-424a-9fc2-375ff7f4da61',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"1\"}'),
('2026-11-20 11:28:00',NULL,22,'3f1e3856-178c-4dc6-93de-4c6edb18ebb0',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"5\"}'),
('2026-11-20 11:28:00',NULL,23,'2be9b3b5-2155-4fc0-ba57-5b872f4e8449',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"6\"}'),
('2026-11-20 11:28:00',NULL,24,'75029891-c057-4fd4-aca7-59b5d62002b0',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"2\"}'),
('2026-11-20 11:28:00',NULL,25,'bf359d07-e2e7-4168-a771-1dce56020094',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"7\"}'),
('2026-11-20 11:28:00',NULL,26,'4a7593d2-e972-41a1-8ee3-eb3ceb937204',1,1,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"2\", \"function\": \"0\"}'),
('2026-11-20 11:28:00',NULL,27,'a17fbb9c-b764-48fe-ae92-074fc6109d1f',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"3\"}'),
('2026-11-20 11:28:00',NULL,28,'23e1ac90-e3c7-4e1b-bbd9-b48836c104ea',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"4\"}'),
('2026-11-20 11:28:00','2026-11-20 11:28:02',29,'ce80a973-2295-4fbb-9451-ff337c15718c',3,3,1,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"1\"}'),
('2026-11-20 11:28:00','2026-11-20 11:28:04',30,'d707b498-382d-429e-b3f7-dbe19e3119f4',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"2\"}'),
('2026-11-20 11:28:00',NULL,31,'64f01f01-916b-459f-8bd4-13d26a78c7f4',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"5\"}'),
('2026-11-20 11:28:00',NULL,32,'6c95eef5-991b-45dd-997b-57848423222b',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"3\"}'),
('2026-11-20 11:28:00',NULL,33,'928b7c96-5f97-46cf-bee4-5a83734fcd61',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"6\"}'),
('2026-11-20 11:28:00',NULL,34,'3ab54e48-785f-4d76-a504-9454a04f973d',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"4\"}'),
('2026-11-20 11:28:00',NULL,35,'8e7869e7-e921-4d8c-91d6-b27edb78a5de',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"7\"}'),
('2026-11-20 11:28:00',NULL,36,'1e7200e4-529c-4c84-8242-7ad1699108c6',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"5\"}'),
('2026-11-20 11:28:00',NULL,37,'0e2f92d1-7d0c-4d33-b870-b4b47479ea2a',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"6\"}'),
('2026-11-20 11:28:00',NULL,38,'cece2d60-403b-42ce-a786-c88105582e99',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"0\", \"function\": \"7\"}'),
('2026-11-20 11:28:00',NULL,39,'afdc2552-a4b2-4260-b220-d6bccf049e80',2,2,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"2\", \"function\": \"0\"}'),
('2026-11-20 11:28:00',NULL,40,'494e9178-4e70-4fa2-a1ab-85da916fb836',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"0\"}'),
('2026-11-20 11:28:00',NULL,41,'9f9b6839-d0a9-45eb-94c0-42974abf6cd5',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"1\"}'),
('2026-11-20 11:28:00',NULL,42,'21b12e73-51d5-45e3-8733-b6ba17c3c076',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"2\"}'),
('2026-11-20 11:28:00',NULL,43,'be0c1d1f-c195-429a-adfd-41e596417f38',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"3\"}'),
('2026-11-20 11:28:00',NULL,44,'20d9e667-1643-4035-8f59-472580fbe865',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"4\"}'),
('2026-11-20 11:28:00',NULL,45,'3b575506-f353-49ae-b903-04d57c8afbee',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"5\"}'),
('2026-11-20 11:28:00',NULL,46,'a84e3e03-de6f-4d16-8c14-d60149a086ea',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"6\"}'),
('2026-11-20 11:28:00',NULL,47,'3d98fccf-5bec-4fa9-b1e4-c46c94bbeec4',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"1\", \"function\": \"7\"}'),
('2026-11-20 11:28:00',NULL,48,'ad97c4f6-88be-4978-b523-8d8475f8486a',3,3,0,'TEST_PCI','{\"domain\": \"0000\", \"bus\": \"0c\", \"device\": \"2\", \"function\": \"0\"}');
DROP TABLE IF EXISTS `attributes`;
CREATE TABLE `attributes` (
  `created_at` datetime DEFAULT NULL,
  `updated_at` datetime DEFAULT NULL,
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `uuid` varchar(36) NOT NULL,
  `deployable_id` int(11) NOT NULL,
  `key` text NOT NULL,
  `value` text NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uuid` (`uuid`),
  KEY `ix_attributes_deployable_id` (`deployable_id`),
  CONSTRAINT `attributes_ibfk_1` FOREIGN KEY (`deployable_id`) REFERENCES `deployables` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=7 DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
INSERT INTO `attributes` VALUES
('2026-11-20 11:28:00',NULL,1,'96c19bef-67ce-4d06-9e14-90f15f7caa38',1,'traits1','CUSTOM_FAKE_DEVICE'),
('2026-11-20 11:28:00',NULL,2,'feb73a96-6627-4d75-a4f0-995ca759ec91',1,'rc','FPGA'),
('2026-11-20 11:28:00',NULL,3,'9cd2f6e6-6a3a-4abe-8009-58b7e5dbff9b',2,'traits1','CUSTOM_FAKE_DEVICE'),
('2026-11-20 11:28:00',NULL,4,'22caeb5e-0576-490b-8c9b-65da9ba1602f',2,'rc','FPGA'),
('2026-11-20 11:28:00',NULL,5,'2b392b4f-935c-492f-95f2-98b597bb6bb5',3,'traits1','CUSTOM_FAKE_DEVICE'),
('2026-11-20 11:28:00',NULL,6,'d49e0edb-4077-4bd7-bd48-25876a3013ba',3,'rc','FPGA');
DROP TABLE IF EXISTS `controlpath_ids`;
CREATE TABLE `controlpath_ids` (
  `created_at` datetime DEFAULT NULL,
  `updated_at` datetime DEFAULT NULL,
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `uuid` varchar(36) NOT NULL,
  `device_id` int(11) NOT NULL,
  `cpid_type` enum('PCI') NOT NULL,
  `cpid_info` varchar(255) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uuid` (`uuid`),
  KEY `ix_controlpath_ids_device_id` (`device_id`),
  CONSTRAINT `controlpath_ids_ibfk_1` FOREIGN KEY (`device_id`) REFERENCES `devices` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
INSERT INTO `controlpath_ids` VALUES
('2026-11-20 11:28:00',NULL,1,'3d45d764-d098-4502-913c-212dff9e0421',1,'PCI','{\"domain\":\"0000\",\"bus\":\"0c\",\"device\":\"00\",\"function\":\"0\"}'),
('2026-11-20 11:28:00',NULL,2,'cc1e8823-3a5f-46ca-bc33-de7cea420acd',2,'PCI','{\"domain\":\"0000\",\"bus\":\"0c\",\"device\":\"00\",\"function\":\"0\"}'),
('2026-11-20 11:28:00',NULL,3,'9ad54790-a0cc-4c03-a743-b5930cc7f895',3,'PCI','{\"domain\":\"0000\",\"bus\":\"0c\",\"device\":\"00\",\"function\":\"0\"}');
DROP TABLE IF EXISTS `deployables`;
CREATE TABLE `deployables` (
  `created_at` datetime DEFAULT NULL,
  `updated_at` datetime DEFAULT NULL,
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `uuid` varchar(36) NOT NULL,
  `parent_id` int(11) DEFAULT NULL,
  `root_id` int(11) DEFAULT NULL,
  `name` varchar(255) NOT NULL,
  `num_accelerators` int(11) NOT NULL,
  `device_id` int(11) NOT NULL,
  `rp_uuid` varchar(36) DEFAULT NULL,
  `driver_name` varchar(100) DEFAULT NULL,
  `bitstream_id` varchar(36) DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uuid` (`uuid`),
  KEY `deployables_parent_id_idx` (`parent_id`),
  KEY `deployables_device_id_idx` (`device_id`),
  KEY `deployables_root_id_idx` (`root_id`),
  CONSTRAINT `deployables_ibfk_1` FOREIGN KEY (`parent_id`) REFERENCES `deployables` (`id`) ON DELETE CASCADE,
  CONSTRAINT `deployables_ibfk_2` FOREIGN KEY (`root_id`) REFERENCES `deployables` (`id`) ON DELETE CASCADE,
  CONSTRAINT `deployables_ibfk_3` FOREIGN KEY (`device_id`) REFERENCES `devices` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
INSERT INTO `deployables` VALUES
('2026-11-20 11:28:00','2026-11-20 11:28:00',1,'26cc0af2-46bd-4aa6-a3c1-c31eae2398dd',NULL,NULL,'lab-host-2_FakeDevice',16,1,'12788cb2-dc63-3358-aa0c-d18aa3c5a18c','fake',NULL),
('2026-11-20 11:28:00','2026-11-20 11:28:00',2,'fb52d628-74e3-40ca-826d-e22f3b8002ac',NULL,NULL,'lab-sim-1_FakeDevice',16,2,'ace031f3-3b09-3b14-b9b3-6032a8eeb122','fake',NULL),
('2026-11-20 11:28:00','2026-11-20 11:28:00',3,'18099cc4-b71a-41fb-a5c8-8732a3094092',NULL,NULL,'lab-host-1_FakeDevice',16,3,'056d6221-b84c-3d5f-bb2d-d03980a6d471','fake',NULL);
DROP TABLE IF EXISTS `device_profiles`;
CREATE TABLE `device_profiles` (
  `created_at` datetime DEFAULT NULL,
  `updated_at` datetime DEFAULT NULL,
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `uuid` varchar(36) NOT NULL,
  `name` varchar(255) NOT NULL,
  `profile_json` text NOT NULL,
  `description` text DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uniq_device_profiles0uuid` (`uuid`),
  UNIQUE KEY `uniq_device_profiles0name` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
INSERT INTO `device_profiles` VALUES
('2026-11-20 11:28:01',NULL,1,'e873a156-b10e-41b3-b999-338ea2192001','up-0','{\"groups\": [{\"resources:FPGA\": \"1\", \"trait:CUSTOM_FAKE_DEVICE\": \"required\"}]}','profile 0'),
('2026-11-20 11:28:01',NULL,2,'c571d874-f425-4d94-bb0d-aad892200435','up-1','{\"groups\": [{\"resources:FPGA\": \"1\", \"trait:CUSTOM_FAKE_DEVICE\": \"required\"}]}','profile 1'),
('2026-11-20 11:28:01',NULL,3,'cb633c85-3107-4d40-9f38-abd3334681c8','up-2','{\"groups\": [{\"resources:FPGA\": \"1\", \"trait:CUSTOM_FAKE_DEVICE\": \"required\"}]}','profile 2');
DROP TABLE IF EXISTS `devices`;
CREATE TABLE `devices` (
  `created_at` datetime DEFAULT NULL,
  `updated_at` datetime DEFAULT NULL,
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `uuid` varchar(36) NOT NULL,
  `type` enum('GPU','FPGA','AICHIP','QAT','NIC','SSD','MDEV','PCI','NVME') NOT NULL,
  `vendor` varchar(255) NOT NULL,
  `model` varchar(255) NOT NULL,
  `std_board_info` text DEFAULT NULL,
  `vendor_board_info` text DEFAULT NULL,
  `hostname` varchar(255) NOT NULL,
  `status` enum('enabled','maintaining') NOT NULL,
  `device_state` enum('available','allocated','pending_cleaning','cleaning','error') DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uuid` (`uuid`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
INSERT INTO `devices` VALUES
('2026-11-20 11:28:00',NULL,1,'00e71221-c019-4d10-93d9-0f4ffc30e4d5','FPGA','0xABCD','miss model info','{\"device_id\": \"0xabcd\", \"class\": \"Fake class\"}','fake_vendor_info','lab-host-2','enabled','available'),
('2026-11-20 11:28:00',NULL,2,'ad7a24b8-7ee6-4a53-b25c-97f606bd273b','FPGA','0xABCD','miss model info','{\"device_id\": \"0xabcd\", \"class\": \"Fake class\"}','fake_vendor_info','lab-sim-1','enabled','available'),
('2026-11-20 11:28:00','2026-11-20 11:28:04',3,'95a4f4fb-1058-4f22-9aef-08d6e7a60284','FPGA','0xABCD','miss model info','{\"device_id\": \"0xabcd\", \"class\": \"Fake class\"}','fake_vendor_info','lab-host-1','maintaining','available');
DROP TABLE IF EXISTS `extended_accelerator_requests`;
CREATE TABLE `extended_accelerator_requests` (
  `created_at` datetime DEFAULT NULL,
  `updated_at` datetime DEFAULT NULL,
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `uuid` varchar(36) NOT NULL,
  `project_id` varchar(255) DEFAULT NULL,
  `state` enum('Initial','BindStarted','Bound','Unbound','BindFailed','Deleting') NOT NULL,
  `device_profile_id` int(11) NOT NULL,
  `hostname` varchar(255) DEFAULT NULL,
  `device_rp_uuid` varchar(36) DEFAULT NULL,
  `attach_handle_id` int(11) DEFAULT NULL,
  `substate` enum('Initial') NOT NULL,
  `deployable_id` int(11) DEFAULT NULL,
  `device_profile_group_id` int(11) NOT NULL,
  `instance_uuid` varchar(36) DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `uuid` (`uuid`),
  KEY `extArqs_device_profile_id_idx` (`device_profile_id`),
  KEY `extArqs_device_rp_uuid_idx` (`device_rp_uuid`),
  KEY `extArqs_attach_handle_id_idx` (`attach_handle_id`),
  KEY `extArqs_deployable_id_idx` (`deployable_id`),
  KEY `extArqs_project_id_idx` (`project_id`),
  KEY `extArqs_instance_uuid_idx` (`instance_uuid`),
  CONSTRAINT `extended_accelerator_requests_ibfk_1` FOREIGN KEY (`device_profile_id`) REFERENCES `device_profiles` (`id`),
  CONSTRAINT `extended_accelerator_requests_ibfk_2` FOREIGN KEY (`attach_handle_id`) REFERENCES `attach_handles` (`id`),
  CONSTRAINT `extended_accelerator_requests_ibfk_3` FOREIGN KEY (`deployable_id`) REFERENCES `deployables` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=8 DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
INSERT INTO `extended_accelerator_requests` VALUES
('2026-11-20 11:28:02','2026-11-20 11:28:02',1,'924d5793-c894-428d-b9d6-8da2f62215db','a16ab9bb0bff41aeb4d519a9d7d223ac','Bound',1,'lab-host-2','12788cb2-dc63-3358-aa0c-d18aa3c5a18c',1,'Initial',1,0,'0943c21f-edb5-4363-9d49-3f0cc4ee0779'),
('2026-11-20 11:28:02','2026-11-20 11:28:02',2,'eaba1e81-0f0d-4e9d-9ff2-96a0868b21ce','a16ab9bb0bff41aeb4d519a9d7d223ac','Bound',1,'lab-sim-1','ace031f3-3b09-3b14-b9b3-6032a8eeb122',4,'Initial',2,0,'fb2dddab-59ae-408f-8c4c-13694450c3d6'),
('2026-11-20 11:28:02','2026-11-20 11:28:02',3,'654c73c6-0128-4065-9d81-221d40d19ab0','a16ab9bb0bff41aeb4d519a9d7d223ac','Bound',1,'lab-host-1','056d6221-b84c-3d5f-bb2d-d03980a6d471',29,'Initial',3,0,'929f7c3a-8b62-40e6-b75d-935dc6e01e88'),
('2026-11-20 11:28:03','2026-11-20 11:28:03',4,'591e4a49-233e-470d-ad98-bf6a1f7fb175','a16ab9bb0bff41aeb4d519a9d7d223ac','Bound',1,'lab-host-2','12788cb2-dc63-3358-aa0c-d18aa3c5a18c',2,'Initial',1,0,'23150495-49c1-4773-b714-a82a1546f82e'),
('2026-11-20 11:28:03','2026-11-20 11:28:03',5,'505ff704-70dd-42ef-9cd3-da24a0edd329','a16ab9bb0bff41aeb4d519a9d7d223ac','Bound',1,'lab-sim-1','ace031f3-3b09-3b14-b9b3-6032a8eeb122',6,'Initial',2,0,'3ec7a9fc-24d0-4e52-ad4d-227d58b86eae'),
('2026-11-20 11:28:04','2026-11-20 11:28:04',6,'04f5ee7a-5296-4c7d-9479-e97bfb8fe872','a16ab9bb0bff41aeb4d519a9d7d223ac','Unbound',1,NULL,NULL,NULL,'Initial',NULL,0,NULL),
('2026-11-20 11:28:04',NULL,7,'bfb76ce5-3c17-4ff4-8681-bc1be035d6b7','a16ab9bb0bff41aeb4d519a9d7d223ac','Initial',1,NULL,NULL,NULL,'Initial',NULL,0,NULL);
DROP TABLE IF EXISTS `quota_usages`;
CREATE TABLE `quota_usages` (
  `created_at` datetime DEFAULT NULL,
  `updated_at` datetime DEFAULT NULL,
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `project_id` varchar(255) DEFAULT NULL,
  `user_id` varchar(255) DEFAULT NULL,
  `resource` varchar(255) NOT NULL,
  `in_use` int(11) NOT NULL,
  `reserved` int(11) NOT NULL,
  `until_refresh` int(11) DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `ix_quota_usages_project_id` (`project_id`),
  KEY `ix_quota_usages_user_id` (`user_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
DROP TABLE IF EXISTS `reservations`;
CREATE TABLE `reservations` (
  `created_at` datetime DEFAULT NULL,
  `updated_at` datetime DEFAULT NULL,
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `uuid` varchar(36) NOT NULL,
  `usage_id` int(11) NOT NULL,
  `project_id` varchar(255) DEFAULT NULL,
  `user_id` varchar(255) DEFAULT NULL,
  `resource` varchar(255) DEFAULT NULL,
  `delta` int(11) NOT NULL,
  `expire` datetime DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `usage_id` (`usage_id`),
  KEY `ix_reservations_project_id` (`project_id`),
  KEY `ix_reservations_user_id` (`user_id`),
  KEY `reservations_uuid_idx` (`uuid`),
  CONSTRAINT `reservations_ibfk_1` FOREIGN KEY (`usage_id`) REFERENCES `quota_usages` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_general_ci;
SET FOREIGN_KEY_CHECKS=1;

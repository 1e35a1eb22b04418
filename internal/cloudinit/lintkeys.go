package cloudinit

import "strings"

// keyList holds the top-level keys of a cloud-config: those in cloud-init's own schemas
// from 22.4 to 25.3, then those that its code reads besides (old spellings among them).
var keyList = strings.Fields(`
	allow_public_ssh_keys ansible apk_repos apt apt_pipelining apt_reboot_if_required apt_update
	apt_upgrade authkey_hash autoinstall bootcmd byobu_by_default ca-certs ca_certs chef
	chpasswd cloud_config_modules cloud_final_modules cloud_init_modules create_hostname_file
	device_aliases disable_ec2_metadata disable_root disable_root_opts disk_setup drivers fan
	final_message fqdn fs_setup groups growpart grub-dpkg grub_dpkg hostname keyboard landscape
	launch-index locale locale_configfile lxd manage_etc_hosts manage_resolv_conf mcollective
	merge_how merge_type migrate mount_default_fields mounts no_ssh_fingerprints ntp output
	package_reboot_if_required package_update package_upgrade packages password phone_home
	power_state prefer_fqdn_over_hostname preserve_hostname puppet random_seed reporting
	resize_rootfs resolv_conf rh_subscription rpi rsyslog runcmd salt_minion snap spacewalk ssh
	ssh_authorized_keys ssh_deletekeys ssh_fp_console_blacklist ssh_genkeytypes ssh_import_id
	ssh_key_console_blacklist ssh_keys ssh_publish_hostkeys ssh_pwauth ssh_quiet_keygen swap
	system_info timezone ubuntu_advantage ubuntu_pro updates user users vendor_data version
	wireguard write_files yum_repo_dir yum_repos zypper

	add_apt_repo_match apt_custom_sources_list apt_ftp_proxy apt_http_proxy apt_https_proxy
	apt_mirror apt_mirror_search apt_mirror_search_dns apt_preserve_sources_list apt_proxy
	apt_sources datasource datasource_list debconf_selections def_log_file disabled_handlers
	manual_cache_clean ntp_client syslog_fix_perms ubuntu-advantage unverified_modules
`)

var knownKeys = func() map[string]bool {
	m := make(map[string]bool, len(keyList))
	for _, k := range keyList {
		m[k] = true
	}
	return m
}()

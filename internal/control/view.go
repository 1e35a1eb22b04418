package control

import (
	"cmp"
	"slices"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// instanceView renders an instance for the wire, without what only GET by id
// carries.
func instanceView(i *compute.Instance, d *store.Details, now time.Time) api.Instance {
	a := &d.Agent
	v := api.Instance{
		ID: i.ID, ProjectID: i.ProjectID, Name: i.Spec.Name, ImageID: i.Spec.ImageID, InstanceType: i.Spec.InstanceType,
		VCPUs: i.Spec.Shape.VCPUs, MemoryBytes: i.Spec.Shape.MemoryBytes, NodeID: i.NodeID, State: string(i.State), StateMessage: i.Message,
		DesiredState: i.Spec.DesiredState, Health: string(i.Health(a, now)), AgentEnabled: i.Spec.AgentEnabled,
		AgentActivation: string(a.Activation), AgentEnrollmentPending: a.EnrollmentPending, AgentEnrolledAt: optional(a.EnrolledAt),
		Boot: bootView(&a.Boot), ForceStopping: i.ForceStopping && i.State == compute.StateStopping, StartOnNodeBoot: i.Spec.StartOnNodeBoot,
		MaintenanceStrategy: string(cmp.Or(i.Spec.MaintenanceStrategy, compute.StrategyMigrate)), Migration: moveView(i),
		RootVolumeID: i.RootVolumeID, RootVolumeAutoProvisioned: true, NetworkInterfaces: []api.NetworkInterface{},
		Selectors: selectorsView(i.Spec.Selectors), Countables: i.Spec.Countables,
		MetadataOptions: metadataView(i.Spec.Metadata), PublicKeys: slices.Clone(i.Spec.PublicKeys), Tags: i.Spec.Tags,
		CreatedAt: i.CreatedAt, LaunchedAt: optional(i.LaunchedAt),
	}
	if i.Spec.UserDataHash != "" {
		v.UserDataHash = "sha256:" + i.Spec.UserDataHash
	}
	if d.GroupName != "" { // both go with the group (contract U-14)
		v.PlacementGroupID, v.PlacementGroupName = i.Spec.PlacementGroupID, d.GroupName
	}
	for _, vol := range d.Volumes {
		if !vol.Root {
			v.DataVolumes = append(v.DataVolumes, api.DataVolume{Device: vol.Device, VolumeID: vol.ID, SizeBytes: vol.SizeBytes, SourceSnapshotID: vol.SnapshotID})
		}
	}
	for n, f := range d.Interfaces {
		address := f.Address.String()
		v.NetworkInterfaces = append(v.NetworkInterfaces, api.NetworkInterface{ID: f.ID, PrivateIP: address, SubnetID: f.SubnetID, VPCID: f.VPCID, MAC: f.MAC.String()})
		if n == 0 {
			v.PrimaryInterfaceID, v.PrimaryInterfaceAutoProvisioned = f.ID, f.AutoProvisioned
			v.PrimaryPrivateIP, v.PrivateIPAddress = address, address
		}
	}
	return v
}

// describe adds what only GET by id carries (contract U-08, U-10).
func describe(v *api.Instance, i *compute.Instance, a *compute.Agent, now time.Time) {
	s := agentStatusView(i, a, now)
	v.AgentStatus = &s
	if r := i.HealthReason(a, now); r != nil {
		v.HealthReason = &api.HealthReason{Code: r.Code, Message: r.Message, Since: optional(r.Since), Deadline: optional(r.Deadline)}
	}
}

func agentStatusView(i *compute.Instance, a *compute.Agent, now time.Time) api.AgentStatus {
	return api.AgentStatus{
		InstanceID: i.ID, Health: string(i.AgentHealth(a, now)), LastHeartbeatAt: optional(a.LastHeartbeatAt), Version: a.Version,
		LastReconcileResult: a.ReconcileResult, LastReconcileAt: optional(a.ReconcileAt),
	}
}

func bootView(b *compute.BootOutcome) *api.BootCondition {
	if b.Status == "" {
		return nil
	}
	v := &api.BootCondition{Status: b.Status, Detail: b.Detail, At: b.At}
	if b.UserDataHash != "" {
		v.UserDataHash = "sha256:" + b.UserDataHash
	}
	return v
}

// selectorsView writes the conditions as a create takes them.
func selectorsView(list []compute.Selector) []string {
	var out []string
	for _, s := range list {
		out = append(out, s.String())
	}
	return out
}

func metadataView(m compute.MetadataOptions) api.MetadataOptions {
	return api.MetadataOptions{HTTPEndpoint: m.HTTPEndpoint, HTTPTokens: m.HTTPTokens,
		HTTPPutResponseHopLimit: m.HTTPPutResponseHopLimit, InstanceMetadataTags: m.InstanceMetadataTags}
}

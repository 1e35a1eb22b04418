package compute

import "time"

// Image is a disk image that instances launch from, stored once by its sha256.
type Image struct {
	ID        string
	ProjectID string
	Name      string
	Public    bool   // seen by all projects; an operator's
	SHA256    string // hex, of the file's bytes
	Format    string // "qcow2" or "raw"
	// Architecture is that of the nodes it runs on, one of Architectures; empty where
	// nobody said.
	Architecture string
	SizeBytes    int64 // of the file
	VirtualSize  int64 // of the disk that the guest sees, bytes
	Tags         map[string]string
	Volumes      []ImageVolume // data devices, beside the root
	State        ImageState
	CreatedAt    time.Time
}

// MaxImageVirtualSize bounds the disk that an image may claim to be.
const MaxImageVirtualSize = 2048 * gib

// Volume is a block device of an instance: a file on its node.
type Volume struct {
	ID         string
	ProjectID  string
	NodeID     string // empty until its first instance is placed
	InstanceID string // empty while attached to none
	Device     string // guest device, e.g. /dev/vda
	SizeBytes  int64
	Root       bool
	Auto       bool   // made by the create, removed by the terminate (contract U-11)
	SnapshotID string // the image snapshot that it was cloned from, if any
	// Base is what a volume that was carried from another node stands on; nil where
	// it stands on its instance's image, a snapshot of it, or nothing.
	Base      *ImageVolume
	Made      bool // a VM has run with it on its node, so its file is there
	Going     bool // its file is being removed
	CreatedAt time.Time
}

// MaxDataVolumes bounds the data volumes of an instance.
const MaxDataVolumes = 16

// DataDevice is the guest device of the nth data volume, from 0: /dev/vdb, ….
func DataDevice(n int) string { return "/dev/vd" + string(rune('b'+n)) }

// ImageState: an image made from an instance is there before its bytes are.
type ImageState string

const (
	ImageAvailable ImageState = "available"
	ImageCreating  ImageState = "creating"
	ImageFailed    ImageState = "failed"
)

// ImageVolume is one data device of a multi-volume image.
type ImageVolume struct {
	SnapshotID  string
	SHA256      string
	Format      string
	SizeBytes   int64
	VirtualSize int64
}

// Project is a tenant of the compute API.
type Project struct {
	ID        string
	Name      string
	CreatedAt time.Time
}

// DefaultProject exists from the first start.
const DefaultProject = "default"

package compute

import "time"

// Image is a disk image that instances launch from, stored once by its sha256.
type Image struct {
	ID          string
	ProjectID   string
	Name        string
	Public      bool   // seen by all projects; an operator's
	SHA256      string // hex, of the file's bytes
	Format      string // "qcow2" or "raw"
	SizeBytes   int64  // of the file
	VirtualSize int64  // of the disk that the guest sees, bytes
	Tags        map[string]string
	CreatedAt   time.Time
}

// MaxImageVirtualSize bounds the disk that an image may claim to be.
const MaxImageVirtualSize = 2048 * gib

// Volume is a block device of an instance.
type Volume struct {
	ID         string
	InstanceID string
	Device     string // guest device, e.g. /dev/vda
	SizeBytes  int64
	Root       bool
	Auto       bool // made by the create, removed by the terminate (contract U-11)
	CreatedAt  time.Time
}

// Project is a tenant of the compute API.
type Project struct {
	ID        string
	Name      string
	CreatedAt time.Time
}

// DefaultProject exists from the first start.
const DefaultProject = "default"

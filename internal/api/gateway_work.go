package api

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// QueueWork is the body of POST /v1/work.
type QueueWork struct {
	Name           string            `json:"name,omitempty" minLength:"1" maxLength:"255"`
	Command        []string          `json:"command" minItems:"1" maxItems:"1024" doc:"Program and arguments, as they are: no shell."`
	Env            map[string]string `json:"env,omitempty" doc:"Only the host that runs the job sees the values."`
	Image          string            `json:"image,omitempty" minLength:"1" maxLength:"255" doc:"Runner image to run it in; the host's default when omitted."`
	TimeoutSeconds int64             `json:"timeoutSeconds,omitempty" minimum:"1" maximum:"604800" doc:"Of one attempt; 3600 when omitted."`
	MemoryBytes    int64             `json:"memoryBytes,omitempty" minimum:"0" doc:"What it needs; it goes only to a host that has it."`
	DiskBytes      int64             `json:"diskBytes,omitempty" minimum:"0" doc:"Likewise."`
	MaxAttempts    int64             `json:"maxAttempts,omitempty" minimum:"1" maximum:"10" doc:"How often a host may begin with it; 3 when omitted."`
}

// Work is a job and how far it has come. Being alive and getting on are two
// things (lesson 38): aliveAt is the host's word, progressAt the command's.
type Work struct {
	ID             string     `json:"id" format:"uuid"`
	Name           string     `json:"name"`
	Command        []string   `json:"command"`
	EnvNames       []string   `json:"envNames" doc:"Names of the variables; the values stay with the host."`
	Image          string     `json:"image"`
	TimeoutSeconds int64      `json:"timeoutSeconds"`
	MemoryBytes    int64      `json:"memoryBytes"`
	DiskBytes      int64      `json:"diskBytes"`
	MaxAttempts    int64      `json:"maxAttempts"`
	CreatedBy      string     `json:"createdBy"`
	State          string     `json:"state" enum:"queued,running,cancelling,succeeded,failed,cancelled"`
	Message        *string    `json:"message" doc:"Why it failed, or waits."`
	Attempt        int64      `json:"attempt" doc:"The one that runs or ran last; 0 before the first."`
	Host           *string    `json:"host" doc:"That runs it or ran it last."`
	ExitCode       *int64     `json:"exitCode"`
	LogBytes       int64      `json:"logBytes" doc:"Of the last attempt."`
	CreatedAt      time.Time  `json:"createdAt"`
	StartedAt      *time.Time `json:"startedAt" doc:"Of the last attempt."`
	AliveAt        *time.Time `json:"aliveAt" doc:"When the host last renewed its lease."`
	ProgressAt     *time.Time `json:"progressAt" doc:"When the command last wrote or was seen to get on."`
	LeaseUntil     *time.Time `json:"leaseUntil" doc:"When the job goes back to the queue unless the host renews."`
	FinishedAt     *time.Time `json:"finishedAt"`
}

// ClaimWork is the body of POST /v1/work/claims.
type ClaimWork struct {
	Host        string `json:"host" minLength:"1" maxLength:"255"`
	MemoryBytes *int64 `json:"memoryBytes,omitempty" minimum:"0" doc:"What the job may need; any when omitted."`
	DiskBytes   *int64 `json:"diskBytes,omitempty" minimum:"0" doc:"Likewise."`
}

// ClaimedWork is all that a host needs to run a job. Every later word about it
// carries leaseEpoch; the lease counts from when the request was sent.
type ClaimedWork struct {
	ID             string            `json:"id" format:"uuid"`
	Name           string            `json:"name"`
	Command        []string          `json:"command"`
	Env            map[string]string `json:"env"`
	Image          string            `json:"image"`
	TimeoutSeconds int64             `json:"timeoutSeconds"`
	MemoryBytes    int64             `json:"memoryBytes"`
	DiskBytes      int64             `json:"diskBytes"`
	Attempt        int64             `json:"attempt"`
	MaxAttempts    int64             `json:"maxAttempts"`
	LeaseEpoch     int64             `json:"leaseEpoch"`
	LeaseSeconds   int64             `json:"leaseSeconds" doc:"Stop the command when so long passed without a renewal."`
	RenewSeconds   int64             `json:"renewSeconds" doc:"How often to renew."`
}

// ClaimAnswer is the data of a claim: null when there is nothing to do.
type ClaimAnswer struct {
	Data *ClaimedWork `json:"data"`
}

// TransformSchema lets the object be null.
func (ClaimAnswer) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	orNull(s, "data")
	return s
}

// RenewWork is the body of POST /v1/work/{id}/renew.
type RenewWork struct {
	Host       string `json:"host" minLength:"1" maxLength:"255"`
	LeaseEpoch int64  `json:"leaseEpoch" minimum:"1"`
	Progressed bool   `json:"progressed,omitempty" doc:"The command has got on since the last renewal."`
}

// RenewedWork is the answer to a renewal.
type RenewedWork struct {
	LeaseSeconds int64 `json:"leaseSeconds" doc:"How much longer the host holds the job."`
	RenewSeconds int64 `json:"renewSeconds"`
	Cancel       bool  `json:"cancel" doc:"Somebody cancelled the job: stop its command, then complete it."`
}

// CompleteWork is the body of POST /v1/work/{id}/complete: the command ended.
type CompleteWork struct {
	Host       string `json:"host" minLength:"1" maxLength:"255"`
	LeaseEpoch int64  `json:"leaseEpoch" minimum:"1"`
	ExitCode   int64  `json:"exitCode" minimum:"-2147483648" maximum:"2147483647"`
	Message    string `json:"message,omitempty" maxLength:"2000"`
}

// FailWork is the body of POST /v1/work/{id}/fail: the host could not run the
// command to its end.
type FailWork struct {
	Host       string `json:"host" minLength:"1" maxLength:"255"`
	LeaseEpoch int64  `json:"leaseEpoch" minimum:"1"`
	Message    string `json:"message" minLength:"1" maxLength:"2000"`
	Retry      *bool  `json:"retry,omitempty" doc:"Queue it again while attempts are left; true when omitted."`
}

// AppendWorkLog is the body of POST /v1/work/{id}/logs.
type AppendWorkLog struct {
	Host       string `json:"host" minLength:"1" maxLength:"255"`
	LeaseEpoch int64  `json:"leaseEpoch" minimum:"1"`
	Offset     int64  `json:"offset" minimum:"0" doc:"Of the first byte, from the start of the attempt's output. Bytes that are there already are skipped, so a chunk can be sent again."`
	Data       []byte `json:"data" doc:"Base64 of 1 to 262144 bytes."`
}

// WorkLogPosition is how far an attempt's log has come.
type WorkLogPosition struct {
	Next      int64 `json:"next" doc:"Offset of the next byte to send."`
	Truncated bool  `json:"truncated" doc:"The log is full; what follows is not kept."`
}

// WorkLog is a part of the last attempt's log.
type WorkLog struct {
	Attempt int64  `json:"attempt"`
	Offset  int64  `json:"offset" doc:"Of the first byte of data."`
	Data    []byte `json:"data" doc:"Base64, 1 MiB at most."`
	Next    int64  `json:"next" doc:"Offset to ask for next."`
	End     bool   `json:"end" doc:"The job is over and there is no more."`
}

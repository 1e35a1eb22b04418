package api

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// The gateway's shapes. Hosts, work and capabilities write their names in
// camelCase as the published hosts operations do, apps and keys in snake_case.

// Data is the envelope of the gateway's successes (contract E-06).
type Data[T any] struct {
	Data T `json:"data"`
}

// DataList is one page of a list of the gateway.
type DataList[T any] struct {
	Data       []T        `json:"data"`
	Pagination Pagination `json:"pagination"`
}

// Pagination says which part of a list a page is.
type Pagination struct {
	Total  int64 `json:"total" doc:"Entries in all, after the filter."`
	Limit  int64 `json:"limit"`
	Offset int64 `json:"offset"`
}

// GatewayError is the gateway's error envelope (contract E-06).
type GatewayError struct {
	Error GatewayErrorBody `json:"error"`
}

// GatewayErrorBody says what is wrong and what to do.
type GatewayErrorBody struct {
	Code      string `json:"code" doc:"snake_case; what a program can act on."`
	Message   string `json:"message" doc:"For a person."`
	Details   any    `json:"details,omitempty" doc:"With invalid_request_body and invalid_request_query: an object of problems, keyed by dotted field path. With runner_key_signature_stale: serverTime and skewSeconds."`
	RequestID string `json:"request_id,omitempty" doc:"With internal: quote it."`
}

// ClockDetails is the details object of runner_key_signature_stale: what a host
// needs to correct its signing clock (lesson 5).
type ClockDetails struct {
	ServerTime  time.Time `json:"serverTime"`
	SkewSeconds int64     `json:"skewSeconds" doc:"The signature's created less the server's time."`
}

// HostHeartbeat is the body of POST /v1/hosts/heartbeat (contract ).
// Unknown fields are ignored.
type HostHeartbeat struct {
	_              struct{}     `json:"-" additionalProperties:"true"`
	Host           string       `json:"host" minLength:"1" maxLength:"255"`
	CLIVersion     string       `json:"cliVersion" minLength:"1" maxLength:"64"`
	RunnerProtocol *int64       `json:"runnerProtocol,omitempty" minimum:"0" maximum:"1000000" doc:"Gateway contract that the runner was built against; omitted, it is stored as 0, below every minimum."`
	PollSeconds    int64        `json:"pollSeconds" minimum:"1" maximum:"86400"`
	SlotsUsed      int64        `json:"slotsUsed" minimum:"0"`
	SlotsTotal     int64        `json:"slotsTotal" minimum:"1"`
	WorkRequest    *WorkRequest `json:"workRequest,omitempty" doc:"Omitted when this poll made no request for work."`
	LastUpdate     *HostUpdate  `json:"lastUpdate,omitempty" doc:"The runner's last update of itself; omitted, the stored one stays."`
	LowDisk        *HostLowDisk `json:"lowDisk,omitempty" doc:"Sent while the runner holds off new work for want of disk; omitted, it is cleared."`
	Blocked        *HostBlocked `json:"blocked,omitempty" doc:"Sent while a check of the runner's own keeps it from work; omitted, it is cleared."`
}

// WorkRequest is how a runner's request for work went.
type WorkRequest struct {
	OK      bool   `json:"ok"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Schema tells the two forms apart: ok, or not ok with code and message.
func (WorkRequest) Schema(huma.Registry) *huma.Schema {
	length := func(n int) *int { return &n }
	text := func(max int) *huma.Schema {
		return &huma.Schema{Type: huma.TypeString, MinLength: length(1), MaxLength: length(max)}
	}
	is := func(ok bool) *huma.Schema { return &huma.Schema{Type: huma.TypeBoolean, Enum: []any{ok}} }
	return &huma.Schema{AnyOf: []*huma.Schema{
		{Type: huma.TypeObject, Required: []string{"ok"}, Properties: map[string]*huma.Schema{"ok": is(true)}},
		{Type: huma.TypeObject, Required: []string{"ok", "code", "message"},
			Properties: map[string]*huma.Schema{"ok": is(false), "code": text(100), "message": text(500)}},
	}}
}

// HostUpdate is a runner's last update of itself (contract R-05).
type HostUpdate struct {
	_       struct{}   `json:"-" additionalProperties:"true"`
	From    string     `json:"from" minLength:"1" maxLength:"64"`
	To      string     `json:"to" minLength:"1" maxLength:"64"`
	Outcome string     `json:"outcome" enum:"updated,rolled_back,verification_failed,not_published,retrying"`
	Reason  *string    `json:"reason" minLength:"1" maxLength:"500"`
	At      *time.Time `json:"at,omitempty"`
}

// HostLowDisk is free and needed space in bytes.
type HostLowDisk struct {
	_      struct{} `json:"-" additionalProperties:"true"`
	Free   int64    `json:"free" minimum:"0" maximum:"9007199254740991" doc:"Bytes."`
	Needed int64    `json:"needed" minimum:"0" maximum:"9007199254740991" doc:"Bytes."`
}

// HostBlocked is why a runner takes no work.
type HostBlocked struct {
	_      struct{} `json:"-" additionalProperties:"true"`
	Reason string   `json:"reason" minLength:"1" maxLength:"500"`
}

// RunnerHost is a runner host as lists show it (contract R-08). What may be
// missing is null.
type RunnerHost struct {
	Host            string          `json:"host"`
	CLIVersion      string          `json:"cliVersion"`
	RunnerProtocol  int64           `json:"runnerProtocol"`
	PollSeconds     int64           `json:"pollSeconds"`
	SlotsUsed       int64           `json:"slotsUsed" doc:"May be above slotsTotal."`
	SlotsTotal      int64           `json:"slotsTotal"`
	LastHeartbeatAt time.Time       `json:"lastHeartbeatAt" doc:"On the platform's clock."`
	LastSuccessAt   *time.Time      `json:"lastSuccessAt"`
	LastError       *HostError      `json:"lastError"`
	LastUpdate      *HostUpdateView `json:"lastUpdate"`
	LowDisk         *HostLowDisk    `json:"lowDisk"`
	Blocked         *HostBlocked    `json:"blocked"`
	Status          string          `json:"status" enum:"ok,failing,outdated,stale" doc:"Derived whenever it is read."`
}

// TransformSchema lets the objects be null.
func (RunnerHost) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	orNull(s, "lastError", "lastUpdate", "lowDisk", "blocked")
	return s
}

// orNull lets properties that are references be null too (OpenAPI 3.1).
func orNull(s *huma.Schema, names ...string) {
	for _, name := range names {
		p := s.Properties[name]
		if p == nil || p.AnyOf != nil {
			continue
		}
		s.Properties[name] = &huma.Schema{AnyOf: []*huma.Schema{p, {Type: "null"}}, Description: p.Description}
	}
}

// HostError is what the platform answered to a host's last request for work that
// went wrong.
type HostError struct {
	Code    string    `json:"code"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// HostUpdateView is HostUpdate as it is answered: at is null when it was not sent.
type HostUpdateView struct {
	From    string     `json:"from"`
	To      string     `json:"to"`
	Outcome string     `json:"outcome" enum:"updated,rolled_back,verification_failed,not_published,retrying"`
	Reason  *string    `json:"reason"`
	At      *time.Time `json:"at"`
}

// HeartbeatHost is the answer to a heartbeat (contract R-07).
type HeartbeatHost struct {
	RunnerHost
	RunnerVersion string `json:"runnerVersion" doc:"Version that the app's update setting picks for this runner (contract R-09)."`
}

// TransformSchema lets the objects be null.
func (HeartbeatHost) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	return RunnerHost{}.TransformSchema(r, s)
}

// HostDetail is the answer of GET /v1/hosts/{host}.
type HostDetail struct {
	HeartbeatHost
	StatusReason *string     `json:"statusReason" doc:"Why it has its status, and what to do; null for ok."`
	AgeSeconds   int64       `json:"ageSeconds" doc:"Since the last heartbeat."`
	Notice       *HostNotice `json:"notice" doc:"Something to do by a date."`
	WorkHeld     int64       `json:"workHeld" doc:"Jobs whose lease the host holds."`
}

// TransformSchema lets the objects be null.
func (HostDetail) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	orNull(s, "notice")
	return RunnerHost{}.TransformSchema(r, s)
}

// HostNotice is something to do by a date.
type HostNotice struct {
	At      time.Time `json:"at"`
	Message string    `json:"message"`
}

// UpdateSetting says who picks the version of an app's runners (contract R-09).
type UpdateSetting struct {
	Mode    string  `json:"mode" enum:"follow,paused,pinned"`
	Version *string `json:"version" minLength:"1" maxLength:"64" doc:"The held version, with pinned; else null."`
}

// PutUpdateSetting is the body of PUT /v1/hosts/update-setting.
type PutUpdateSetting struct {
	Mode    string `json:"mode" enum:"follow,paused,pinned"`
	Version string `json:"version,omitempty" minLength:"1" maxLength:"64" doc:"With pinned, and only then."`
}

// Capabilities is what the gateway can do (GET /v1/capabilities, for anybody).
type Capabilities struct {
	Version         string       `json:"version" doc:"Outcrop's."`
	RunnerVersion   *string      `json:"runnerVersion" doc:"What the update setting follow means; null: each runner's own maker decides."`
	RunnerProtocol  ProtocolInfo `json:"runnerProtocol"`
	SignatureSkewS  int64        `json:"signatureSkewSeconds" doc:"How far created may be from the gateway's clock."`
	BodyBytes       int64        `json:"bodyBytes" doc:"Largest request body."`
	LeaseSeconds    int64        `json:"leaseSeconds" doc:"How long a host keeps a job without renewing."`
	Features        []string     `json:"features"`
	PermissionNames []string     `json:"permissions" doc:"All that a key can hold."`
}

// ProtocolInfo is which runners the gateway gives work to (lesson 36).
type ProtocolInfo struct {
	Current     int64      `json:"current"`
	Minimum     int64      `json:"minimum" doc:"Below it a host is outdated and gets no work."`
	NextMinimum *int64     `json:"nextMinimum" doc:"An announced minimum."`
	NextFrom    *time.Time `json:"nextMinimumFrom" doc:"When it begins."`
}

// App is what the gateway calls a factory (contract R-25).
type App struct {
	ID        string    `json:"id" format:"uuid"`
	Name      string    `json:"name"`
	Hosts     int64     `json:"hosts" doc:"How many runner hosts it has."`
	CreatedAt time.Time `json:"created_at"`
}

// CreateApp is the body of POST and PATCH on apps.
type CreateApp struct {
	Name string `json:"name" minLength:"1" maxLength:"255"`
}

// APIKey is a key as lists show it: never the secret.
type APIKey struct {
	ID          string     `json:"id" format:"uuid" doc:"Also the keyid of the key's signatures."`
	AppID       string     `json:"app_id" format:"uuid"`
	Name        string     `json:"name"`
	KeyPrefix   string     `json:"key_prefix" doc:"The first characters of the key."`
	Permissions []string   `json:"permissions"`
	Runner      *RunnerKey `json:"runner" doc:"Null for a plain key."`
	CreatedBy   string     `json:"created_by" doc:"Id of the key or token that made it."`
	CreatedAt   time.Time  `json:"created_at"`
	ExpiresAt   *time.Time `json:"expires_at"`
	LastUsedAt  *time.Time `json:"last_used_at" doc:"To the minute."`
	RevokedAt   *time.Time `json:"revoked_at"`
}

// TransformSchema lets the object be null.
func (APIKey) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	orNull(s, "runner")
	return s
}

// RunnerKey binds a key to one host and to the key that signs its requests.
type RunnerKey struct {
	Host      string `json:"host" minLength:"1" maxLength:"255"`
	PublicKey string `json:"public_key" doc:"Base64 of the raw 32 bytes of an ed25519 public key."`
}

// CreateAPIKey is the body of POST /v1/api-keys.
type CreateAPIKey struct {
	Name        string     `json:"name" minLength:"1" maxLength:"255"`
	Permissions []string   `json:"permissions" minItems:"1" doc:"None that the creator lacks."`
	ExpiresAt   *time.Time `json:"expires_at,omitempty" doc:"Never when omitted."`
	Runner      *RunnerKey `json:"runner,omitempty" doc:"Makes it a runner key: every request must be signed by the host."`
}

// NewAPIKey is the answer to a create, the only one with the key itself.
type NewAPIKey struct {
	APIKey
	PlaintextKey string `json:"plaintext_key" doc:"Shown once."`
}

// TransformSchema lets the object be null.
func (NewAPIKey) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	return APIKey{}.TransformSchema(r, s)
}

// Deleted is the answer to a delete.
type Deleted struct {
	ID string `json:"id" doc:"Of what is gone."`
}

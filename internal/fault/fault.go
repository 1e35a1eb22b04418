// Package fault is the short list of ways in which a verb can fail.
//
// A verb returns an *Error; one place per transport turns it into a status and
// an envelope, and the client turns that back into the same *Error, so that a
// kind survives the network. Any other error is Internal: its text stays in the
// server's log and the caller gets a request id to quote.
package fault

import (
	"errors"
	"fmt"
)

// Kind decides the HTTP status (contract E-01).
type Kind uint8

const (
	Internal        Kind = iota // 500, nothing of the cause is shown
	Invalid                     // 400
	Unauthenticated             // 401
	Forbidden                   // 403
	NotFound                    // 404
	Conflict                    // 409
	TooLarge                    // 413
	TooMany                     // 429
)

// Codes that carry a meaning of their own; each Kind also has a default code.
const (
	InvalidInput        = "INVALID_INPUT"
	InvalidState        = "INVALID_STATE"
	UserDataTooLarge    = "USER_DATA_TOO_LARGE"
	IdempotencyConflict = "IDEMPOTENCY_CONFLICT"
	ImageInUse          = "IMAGE_IN_USE"
	ProjectInUse        = "PROJECT_IN_USE"
	NodeInUse           = "NODE_IN_USE"
	NodeIDConflict      = "NODE_ID_CONFLICT"
	NodeUnreachable     = "NODE_UNREACHABLE"
	NodeNotUp           = "NODE_NOT_UP"           // the node is off, or on its way down
	PowerInProgress     = "POWER_IN_PROGRESS"     // another power action of the node is open
	InstancesRunning    = "INSTANCES_RUNNING"     // details: api.RunningInstances
	JoinApprovalRefused = "JOIN_APPROVAL_REFUSED" // details: api.ApprovalRefused
	JoinRefused         = "JOIN_REFUSED"          // an operator has refused the machine
	JoinTokenUsed       = "JOIN_TOKEN_USED"
	NodeKeyUnknown      = "NODE_KEY_UNKNOWN"
	SignatureInvalid    = "SIGNATURE_INVALID"
	SignatureStale      = "SIGNATURE_STALE" // details: api.ClockDetails
	SignatureReplayed   = "SIGNATURE_REPLAYED"
	AlreadyExists       = "ALREADY_EXISTS"
	NoRoom              = "NO_ROOM"        // on any node, or on the one that was asked for
	NoSpace             = "NO_SPACE"       // on the server's disk
	QuotaExceeded       = "QUOTA_EXCEEDED" // details: api.QuotaExceeded
)

var defaults = map[Kind]struct {
	code   string
	status int
}{
	Internal:        {"INTERNAL", 500},
	Invalid:         {InvalidInput, 400},
	Unauthenticated: {"UNAUTHENTICATED", 401},
	Forbidden:       {"FORBIDDEN", 403},
	NotFound:        {"NOT_FOUND", 404},
	Conflict:        {"CONFLICT", 409},
	TooLarge:        {"TOO_LARGE", 413},
	TooMany:         {"RATE_LIMITED", 429},
}

// Status is the HTTP status of the kind.
func (k Kind) Status() int { return defaults[k].status }

// KindOf is the kind that a status of an answer stands for.
func KindOf(status int) Kind {
	for k, d := range defaults {
		if d.status == status {
			return k
		}
	}
	if status >= 400 && status < 500 {
		return Invalid
	}
	return Internal
}

// Field is one problem of a request at its place (contract E-02). Path is as the
// client wrote it (links[0].interface); empty means the whole request.
type Field struct {
	Path    string `json:"field" doc:"Path of the field as the client wrote it; empty for the whole request."`
	Message string `json:"message" doc:"What is wrong with it."`
}

// Error is what a verb answers when it refuses.
type Error struct {
	Kind    Kind
	Code    string  // UPPER_SNAKE; never empty
	Message string  // for the caller, says what to do next
	Fields  []Field // every problem at once
	Details any     // shape fixed per Code (contract E-04)
	Cause   error   // for the log only
}

func (e *Error) Error() string {
	s := e.Message
	for _, f := range e.Fields {
		if f.Path == "" {
			s += "; " + f.Message
		} else {
			s += "; " + f.Path + ": " + f.Message
		}
	}
	return s
}

func (e *Error) Unwrap() error { return e.Cause }

// New makes an error of kind k with the kind's default code.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Code: defaults[k].code, Message: fmt.Sprintf(format, args...)}
}

// Coded makes an error of kind k with a code of its own.
func Coded(k Kind, code, format string, args ...any) *Error {
	return &Error{Kind: k, Code: code, Message: fmt.Sprintf(format, args...)}
}

// InvalidFields makes a 400 that lists every problem; nil when there is none.
func InvalidFields(fields []Field) error {
	if len(fields) == 0 {
		return nil
	}
	msg := "the request has a problem"
	if len(fields) > 1 {
		msg = fmt.Sprintf("the request has %d problems", len(fields))
	}
	return &Error{Kind: Invalid, Code: InvalidInput, Message: msg + "; see fields", Fields: fields}
}

// From finds the *Error in err, or wraps err as Internal.
func From(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: Internal, Code: defaults[Internal].code, Message: "the server could not do this; nothing is known to be wrong with the request", Cause: err}
}

// Is reports whether err is of kind k.
func Is(err error, k Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

// HasCode reports whether err carries the code.
func HasCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

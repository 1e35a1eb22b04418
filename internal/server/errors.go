package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/nearest"
)

// ComputeError is the error envelope of the compute API (contract E-01 to E-04).
type ComputeError struct {
	status  int
	Code    string        `json:"code" doc:"UPPER_SNAKE; switch on it."`
	Message string        `json:"message" doc:"For a person: what is wrong and what to do."`
	Issues  []PolicyIssue `json:"issues,omitempty" doc:"Findings of a rejected IAM policy document."`
	Fields  []fault.Field `json:"fields,omitempty" doc:"Every problem of the request, each at its field."`
	Details any           `json:"details,omitempty" doc:"Structured facts; the shape is fixed per code: ImageInUse for IMAGE_IN_USE, QuotaExceeded for QUOTA_EXCEEDED, RunningInstances for INSTANCES_RUNNING, NodeIDConflict for NODE_ID_CONFLICT, ApprovalRefused for JOIN_APPROVAL_REFUSED, ClockDetails for SIGNATURE_STALE."`
}

// PolicyIssue is one finding of a rejected IAM policy document (contract E-03).
type PolicyIssue struct {
	Code      string `json:"code" doc:"INVALID_DOCUMENT, UNKNOWN_ACTION, ACTION_NOT_APPLICABLE; more may be added."`
	Message   string `json:"message"`
	Statement int    `json:"statement" doc:"Index of the statement; -1 for the document as a whole."`
	Action    string `json:"action,omitempty"`
}

// GetStatus is the HTTP status.
func (e *ComputeError) GetStatus() int { return e.status }
func (e *ComputeError) Error() string  { return e.Message }

// ContentType keeps plain application/json, as the contract's examples have it.
func (e *ComputeError) ContentType(string) string { return "application/json" }

func init() {
	huma.ValidateStrictCasing = true // every name on the wire is exact
	huma.NewErrorWithContext = newHumaError
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return newHumaError(nil, status, msg, errs...)
	}
}

// newHumaError turns what the request's own check found into our envelope: 400
// for what it calls 415 or 422, every problem at its field.
func newHumaError(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
	if status == 0 { // the shape, asked for by the OpenAPI document
		return &ComputeError{}
	}
	joined := errors.Join(errs...)
	if _, ours := errors.AsType[*fault.Error](joined); ours { // from reading the body
		return render(fault.From(joined))
	}
	switch kind := fault.KindOf(status); {
	case status == http.StatusUnsupportedMediaType:
		return render(fault.New(fault.Invalid, "the body must be JSON; send Content-Type: application/json"))
	case kind == fault.Internal:
		return render(fault.From(errors.Join(joined, errors.New(msg))))
	case kind == fault.TooLarge:
		return render(fault.New(fault.TooLarge, "the body is larger than this route takes"))
	}
	fields := fieldsOf(ctx, errs)
	if len(fields) == 0 {
		return render(fault.New(fault.Invalid, "%s", msg))
	}
	return render(fault.From(fault.InvalidFields(fields)))
}

// fieldsOf names each problem once, at its field. Where the body as a whole
// cannot be read, nothing is said of what should have been in it.
func fieldsOf(ctx huma.Context, errs []error) []fault.Field {
	var out []fault.Field
	seen := map[string]bool{}
	for _, err := range errs {
		f := field(ctx, err)
		if f.Path == "" {
			return []fault.Field{f}
		}
		if !seen[f.Path] {
			seen[f.Path] = true
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b fault.Field) int { return strings.Compare(a.Path, b.Path) })
	return out
}

func field(ctx huma.Context, err error) fault.Field {
	var d huma.ErrorDetailer
	if !errors.As(err, &d) {
		return fault.Field{Message: err.Error()}
	}
	detail := d.ErrorDetail()
	where, path, _ := strings.Cut(detail.Location, ".")
	f := fault.Field{Path: path, Message: detail.Message}
	if name, ok := missingProperty(detail.Message); ok {
		return fault.Field{Path: strings.TrimPrefix(path+"."+name, "."), Message: "is needed"}
	}
	if where != "body" || ctx == nil || detail.Message != "unexpected property" {
		return f
	}
	f.Message = "is no field of this request"
	if near := nearest.Nearest(lastSegment(path), siblings(ctx, path)); near != "" {
		f.Message += "; did you mean " + near + "?"
	}
	return f
}

// missingProperty finds the name in the library's word on a required property,
// whose location is the object that lacks it.
func missingProperty(message string) (name string, ok bool) {
	name, ok = strings.CutPrefix(message, "expected required property ")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(name, " to be present")
}

func lastSegment(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// siblings are the names that are known at the place of path in the body.
func siblings(ctx huma.Context, path string) []string {
	op, registry := ctx.Operation(), huma.Registry(nil)
	if x := exchangeOf(ctx.Context()); x != nil {
		registry = x.schemas
	}
	if op == nil || op.RequestBody == nil || registry == nil {
		return nil
	}
	resolve := func(s *huma.Schema) *huma.Schema {
		for s != nil && s.Ref != "" {
			s = registry.SchemaFromRef(s.Ref)
		}
		return s
	}
	media := op.RequestBody.Content["application/json"]
	if media == nil {
		return nil
	}
	s := resolve(media.Schema)
	segments := strings.Split(path, ".")
	for _, seg := range segments[:len(segments)-1] {
		if s == nil {
			return nil
		}
		name, index, _ := strings.Cut(seg, "[")
		s = resolve(s.Properties[name])
		if index != "" && s != nil {
			s = resolve(s.Items)
		}
	}
	if s == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(s.Properties))
}

func render(e *fault.Error) *ComputeError {
	return &ComputeError{status: e.Kind.Status(), Code: e.Code, Message: e.Message, Fields: e.Fields, Details: e.Details}
}

// statusGone is the status of a request whose caller went away before its answer.
// Nobody receives it: it is for the log and the metrics, by the name that nginx
// gave it (IANA has none).
const statusGone = 499

// refuse logs what stays at home and renders what the caller sees.
func refuse(ctx context.Context, log *slog.Logger, err error) *ComputeError {
	e := fault.From(err)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && e.Kind == fault.Internal {
		return &ComputeError{status: statusGone, Code: "CALLER_GONE", Message: "the caller went away before its answer"}
	}
	if e.Kind == fault.Internal {
		log.ErrorContext(ctx, "request failed", "err", err, "requestId", requestID(ctx))
	}
	out := render(e)
	if e.Kind == fault.Internal {
		out.Message += "; quote request id " + requestID(ctx)
	}
	return out
}

// writeError answers with the envelope.
func writeError(w http.ResponseWriter, e *ComputeError) {
	writeJSON(w, e.status, e)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "internal", http.StatusInternalServerError)
		return
	}
	writeRendered(w, status, b)
}

// writeRendered answers with JSON bytes.
func writeRendered(w http.ResponseWriter, status int, b []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

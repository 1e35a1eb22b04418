package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
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
	Details any           `json:"details,omitempty" doc:"Structured facts; the shape is fixed per code: ImageInUse for IMAGE_IN_USE."`
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
	kind := fault.KindOf(status)
	switch status {
	case http.StatusUnsupportedMediaType:
		return render(fault.New(fault.Invalid, "the body must be JSON; send Content-Type: application/json"))
	case http.StatusRequestTimeout:
		return render(fault.New(fault.Invalid, "the body did not arrive in time; send it again"))
	}
	if kind == fault.Internal {
		return render(fault.From(errors.Join(append(errs, errors.New(msg))...)))
	}
	if kind == fault.TooLarge {
		return render(fault.New(fault.TooLarge, "the body is larger than this route takes"))
	}
	var fields []fault.Field
	for _, err := range errs {
		fields = append(fields, field(ctx, err))
	}
	if len(fields) == 0 {
		return render(fault.New(fault.Invalid, "%s", msg))
	}
	return render(fault.From(fault.InvalidFields(fields)))
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
	if near := nearest.Nearest(lastSegment(path), siblings(ctx.Operation(), path)); near != "" {
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
func siblings(op *huma.Operation, path string) []string {
	if op == nil || op.RequestBody == nil {
		return nil
	}
	media := op.RequestBody.Content["application/json"]
	if media == nil {
		return nil
	}
	s := media.Schema
	segments := strings.Split(path, ".")
	for _, seg := range segments[:len(segments)-1] {
		s = resolve(s)
		if s == nil {
			return nil
		}
		name, index, _ := strings.Cut(seg, "[")
		s = s.Properties[name]
		if index != "" && resolve(s) != nil {
			s = resolve(s).Items
		}
	}
	if s = resolve(s); s == nil {
		return nil
	}
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	return names
}

// schemas is the registry that references in operations point into.
var schemas huma.Registry

func resolve(s *huma.Schema) *huma.Schema {
	for s != nil && s.Ref != "" {
		s = schemas.SchemaFromRef(s.Ref)
	}
	return s
}

func render(e *fault.Error) *ComputeError {
	return &ComputeError{status: e.Kind.Status(), Code: e.Code, Message: e.Message, Fields: e.Fields, Details: e.Details}
}

// refuse logs what stays at home and renders what the caller sees.
func refuse(ctx context.Context, log *slog.Logger, err error) *ComputeError {
	e := fault.From(err)
	if errors.Is(err, context.Canceled) && e.Kind == fault.Internal {
		e = fault.New(fault.Invalid, "the caller gave up")
	} else if e.Kind == fault.Internal {
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
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

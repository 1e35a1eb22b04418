package server

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// Bodies with rules beyond their schema. The rules run beside the schema, so
// that one answer names every problem (contract E-02); the verb runs them again.
// Exported, because huma fills embedded structs only then.
type (
	LaunchBody    struct{ Body api.CreateInstance }
	PatchBody     struct{ Body api.PatchInstance }
	PatchNodeBody struct{ Body api.PatchNode }
	TokenBody     struct{ Body api.CreateToken }
	VerdictBody   struct{ Body *api.JoinVerdict }
)

// Resolve is called by huma once the body has been read.
func (b *LaunchBody) Resolve(huma.Context) []error { return problems(control.CheckLaunch(b.Body)) }

// Resolve is called by huma once the body has been read.
func (b *PatchBody) Resolve(huma.Context) []error { return problems(control.CheckPatch(b.Body)) }

// Resolve is called by huma once the body has been read.
func (b *PatchNodeBody) Resolve(huma.Context) []error {
	return problems(control.CheckPatchNode(b.Body))
}

// Resolve is called by huma once the body has been read.
func (b *TokenBody) Resolve(huma.Context) []error { return problems(control.CheckToken(b.Body)) }

// Resolve is called by huma once the body has been read.
func (b *VerdictBody) Resolve(huma.Context) []error {
	return problems(control.CheckVerdict(value(b.Body)))
}

func problems(err error) (out []error) {
	if err == nil {
		return nil
	}
	for _, f := range fault.From(err).Fields {
		out = append(out, &huma.ErrorDetail{Location: "body." + f.Path, Message: f.Message})
	}
	return out
}

package control

import (
	"context"
	"fmt"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/cloudinit"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// PutUserData replaces the user-data of a stopped instance (contract U-01 to
// U-05). The state is checked in the transaction that writes the hash, and a
// start is such a transaction too, so a boot runs either all the old bytes or
// all the new ones.
func (c *Control) PutUserData(ctx context.Context, who iam.Caller, project, id string, b []byte) (api.Instance, error) {
	out, err := c.setUserData(ctx, who, iam.PutUserData, project, id, func(tx *store.Tx) (string, error) {
		switch {
		case len(b) == 0:
			return "", fault.New(fault.Invalid, "the body is empty, and an empty user-data would be wiped by mistake; to have none, send DELETE to the same path")
		case len(b) > compute.MaxUserDataBytes:
			return "", fault.Coded(fault.Invalid, fault.UserDataTooLarge, "the user-data has more than %d bytes; shorten it, or compress it with gzip", compute.MaxUserDataBytes)
		}
		return tx.PutBlob(b)
	})
	if err == nil {
		out.Warnings = lintWarnings(b)
	}
	return out, err
}

// lintWarnings say what a lint finds; they are never a refusal.
func lintWarnings(userData []byte) (out []string) {
	if userData == nil {
		return nil
	}
	for _, f := range cloudinit.Lint(userData) {
		w := "user-data: " + f.Message
		if f.Line > 0 {
			w = fmt.Sprintf("user-data line %d: %s", f.Line, f.Message)
		}
		out = append(out, w)
	}
	return out
}

// DeleteUserData clears the user-data of a stopped instance.
func (c *Control) DeleteUserData(ctx context.Context, who iam.Caller, project, id string) (api.Instance, error) {
	return c.setUserData(ctx, who, iam.DeleteUserData, project, id, func(*store.Tx) (string, error) { return "", nil })
}

func (c *Control) setUserData(ctx context.Context, who iam.Caller, a iam.Action, project, id string, next func(*store.Tx) (string, error)) (api.Instance, error) {
	return c.change(ctx, who, a, project, id, func(tx *store.Tx, i *store.Instance) (string, error) {
		if i.State != compute.StateStopped {
			return "", invalidState(i, "replace the user-data of", "it must be stopped")
		}
		hash, err := next(tx)
		if err != nil {
			return "", err
		}
		// The new reference counts before the old one goes, so that the same bytes
		// again never pass through zero.
		old := i.Spec.UserDataHash
		i.Spec.UserDataHash = hash
		if err := tx.DropBlob(old); err != nil {
			return "", err
		}
		return "user-data", nil
	})
}

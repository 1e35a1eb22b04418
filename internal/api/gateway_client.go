package api

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// InApp says which app a request to the gateway is about.
func InApp(id string) Option {
	return func(r *http.Request) { r.Header.Set("X-Outerlayer-App-Id", id) }
}

// pageSize is how many entries DataPages asks for at once.
const pageSize = 500

// DataPages calls each for every entry of a list of the gateway, page by page.
func DataPages[T any](ctx context.Context, c *Client, path string, each func(T) error, opts ...Option) error {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	for offset := int64(0); ; offset += pageSize {
		var page DataList[T]
		if err := c.Do(ctx, http.MethodGet, fmt.Sprintf("%s%slimit=%d&offset=%d", path, sep, pageSize, offset), nil, &page, opts...); err != nil {
			return err
		}
		for _, entry := range page.Data {
			if err := each(entry); err != nil {
				return err
			}
		}
		if len(page.Data) < pageSize {
			return nil
		}
	}
}

// HostPath is the path of a runner host, or of all with an empty name.
func HostPath(name string) string { return gatewayPath("/v1/hosts", name) }

// WorkPath is the path of a job, with further segments after it, or of all with
// an empty id.
func WorkPath(id string, more ...string) string { return gatewayPath("/v1/work", id, more...) }

func gatewayPath(all, id string, more ...string) string {
	if id == "" {
		return all
	}
	return strings.Join(append([]string{all, url.PathEscape(id)}, more...), "/")
}

// fields are the details of a body or a query that was refused, in the order of
// their paths.
func (b *GatewayErrorBody) fields() (out []fault.Field) {
	if !strings.HasPrefix(b.Code, "invalid_request") {
		return nil
	}
	problems, _ := b.Details.(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(problems)) {
		out = append(out, fault.Field{Path: path, Message: fmt.Sprint(problems[path])})
	}
	return out
}

package server

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// bodyTimeout is how long a small body may take to arrive.
const bodyTimeout = 30 * time.Second

// stallTimeout is how long a large body or download may stand still.
const stallTimeout = time.Minute

// errBrokenBody: the body ended before its announced end.
func errBrokenBody() error {
	return fault.New(fault.Invalid, "the body broke off before its end; nothing was changed, send it again")
}

// readBody reads at most max bytes; over says that there was more. A body that
// breaks off is an error, never a shorter body.
func readBody(w http.ResponseWriter, r *http.Request, max int64) (b []byte, over bool, err error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	if r.ContentLength > 0 && r.ContentLength <= max { // net/http hands out no more
		b = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, b)
	} else {
		b, err = io.ReadAll(http.MaxBytesReader(w, r.Body, max))
	}
	var tooMuch *http.MaxBytesError
	if errors.As(err, &tooMuch) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, errBrokenBody()
	}
	return b, false, nil
}

// userDataRoute: raw bytes in, whatever their Content-Type (contract U-01).
func (s *Server) userDataRoute() {
	const path = "/v1/projects/{projectId}/compute/instances/{instanceId}/user-data"
	o := op("PUT", path, iam.PutUserData, 200, "Replace the user-data of a stopped instance")
	o.Description = "Body: 1 to 65,536 raw bytes, any Content-Type. The next start runs them."
	o.Parameters = pathParams(path)
	o.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"*/*": {Schema: bytesSchema}}}
	response(&o, 200, "Updated instance.", "application/json", schemas.Schema(typeOf[api.Instance](), true, "Instance"))
	s.raw(o, func(w http.ResponseWriter, r *http.Request) error {
		b, over, err := readBody(w, r, compute.MaxUserDataBytes)
		if err != nil {
			return err
		}
		if over {
			b = make([]byte, compute.MaxUserDataBytes+1) // the verb says what is wrong with that
		}
		out, err := s.control.PutUserData(r.Context(), callerOf(r.Context()), r.PathValue("projectId"), r.PathValue("instanceId"), b)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	})
}

// imageImportRoute streams an image of any size.
func (s *Server) imageImportRoute() {
	const path = "/v1/projects/{projectId}/compute/images"
	o := op("POST", path, iam.ImportImage, 201, "Import a disk image (qcow2 or raw)")
	o.Description = "Body: the file's raw bytes. Its header is checked before anything trusts it."
	o.Parameters = append(pathParams(path),
		&huma.Param{Name: "name", In: "query", Required: true, Schema: &huma.Schema{Type: "string"}},
		&huma.Param{Name: "public", In: "query", Description: "true: seen by all projects (operators only).", Schema: &huma.Schema{Type: "boolean"}},
		&huma.Param{Name: "architecture", In: "query", Description: "Its instances go only to nodes of this architecture.", Schema: &huma.Schema{Type: "string", Enum: []any{"amd64", "arm64"}}},
		&huma.Param{Name: "tag", In: "query", Description: "key=value, repeatable.", Schema: &huma.Schema{Type: "array", Items: &huma.Schema{Type: "string"}}},
		&huma.Param{Name: "Idempotency-Key", In: "header", Schema: &huma.Schema{Type: "string"}})
	o.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: bytesSchema}}}
	response(&o, 201, "The image.", "application/json", schemas.Schema(typeOf[api.Image](), true, "Image"))
	s.raw(o, func(w http.ResponseWriter, r *http.Request) error {
		in, err := importQuery(r.URL.Query(), r.ContentLength)
		if err != nil {
			return err
		}
		bound(w, r, stallTimeout, true)
		out, err := s.control.ImportImage(r.Context(), callerOf(r.Context()), r.PathValue("projectId"), in, r.Body, r.Header.Get("Idempotency-Key"))
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusCreated, out)
		return nil
	})
}

func importQuery(q url.Values, size int64) (in control.ImportImage, err error) {
	in = control.ImportImage{Name: q.Get("name"), Architecture: q.Get("architecture"), Size: size}
	for _, t := range q["tag"] {
		k, v, ok := strings.Cut(t, "=")
		if !ok {
			return in, fault.InvalidFields([]fault.Field{{Path: "tag", Message: "is written key=value"}})
		}
		if in.Tags == nil {
			in.Tags = map[string]string{}
		}
		in.Tags[k] = v
	}
	if p := q.Get("public"); p != "" {
		if in.Public, err = strconv.ParseBool(p); err != nil {
			return in, fault.InvalidFields([]fault.Field{{Path: "public", Message: "is true or false"}})
		}
	}
	return in, nil
}

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// nodeFileRoutes are what a node fetches and sends beside JSON.
func (s *Server) nodeFileRoutes() {
	s.uploadRoute()
	blob := op("GET", "/v1/compute/nodes/{nodeId}/blobs/{sha256}", iam.ReadNodeBlob, 200, "Get the user-data of an instance placed on the node (agent-only)")
	blob.Parameters = pathParams(blob.Path)
	response(&blob, 200, "The bytes.", "application/octet-stream", bytesSchema)
	s.raw(blob, func(w http.ResponseWriter, r *http.Request) error {
		b, err := s.control.NodeBlob(r.Context(), callerOf(r.Context()), r.PathValue("nodeId"), r.PathValue("sha256"))
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(b)
		return nil
	})

	image := op("GET", "/v1/compute/nodes/{nodeId}/images/{sha256}", iam.ReadNodeImage, 200, "Get the image file of an instance placed on the node (agent-only)")
	image.Parameters = pathParams(image.Path)
	response(&image, 200, "The file; ranges are answered.", "application/octet-stream", bytesSchema)
	s.raw(image, s.serveImage)

	console := op("PUT", "/v1/compute/nodes/{nodeId}/instances/{instanceId}/console", iam.PutConsole, 204, "Send the end of an instance's console (agent-only)")
	console.Parameters = pathParams(console.Path)
	console.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: bytesSchema}}}
	response(&console, 204, "Taken.", "", nil)
	s.raw(console, func(w http.ResponseWriter, r *http.Request) error {
		b, over, err := readBody(w, r, control.MaxConsoleBytes)
		if err != nil {
			return err
		}
		if over {
			return fault.New(fault.TooLarge, "send the last %d bytes", control.MaxConsoleBytes)
		}
		if err := s.control.PutConsole(r.Context(), callerOf(r.Context()), r.PathValue("nodeId"), r.PathValue("instanceId"), b); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// uploadRoute takes the volumes of an image that is made of an instance.
func (s *Server) uploadRoute() {
	o := op("PUT", "/v1/compute/nodes/{nodeId}/uploads/{uploadId}/{position}", iam.UploadVolume, 204, "Send one volume of an image being made of an instance (agent-only)")
	o.Parameters = pathParams(o.Path)
	o.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: bytesSchema}}}
	response(&o, 204, "Stored.", "", nil)
	s.raw(o, func(w http.ResponseWriter, r *http.Request) error {
		n, err := strconv.Atoi(r.PathValue("position"))
		if err != nil {
			return fault.New(fault.NotFound, "%q is no position of a volume", r.PathValue("position"))
		}
		bound(w, r, stallTimeout, true)
		if err := s.control.TakeVolume(r.Context(), callerOf(r.Context()), r.PathValue("nodeId"), r.PathValue("uploadId"), n, r.Body, r.ContentLength); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

func (s *Server) serveImage(w http.ResponseWriter, r *http.Request) error {
	digest := r.PathValue("sha256")
	if !hexDigest.MatchString(digest) {
		return fault.New(fault.NotFound, "%q is no hex sha256", digest)
	}
	f, err := s.control.NodeImage(r.Context(), callerOf(r.Context()), r.PathValue("nodeId"), digest)
	if err != nil {
		return err
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, f)
	return nil
}

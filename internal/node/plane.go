package node

import (
	_ "embed"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"slices"
	"unicode"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/metadata"
)

// installScript is what the one-time install command runs in the guest.
//
//go:embed install.sh
var installScript []byte

// plane is what guests' agents find below metadata.ExtraPath. The metadata service
// has checked the session token and knows the guest by its port.
func (a *agent) plane() http.Handler {
	mux := http.NewServeMux()
	base := metadata.ExtraPath + "agent"
	mux.HandleFunc("GET "+base, a.sendSettings)
	mux.HandleFunc("PUT "+base+"/heartbeat", a.takeHeartbeat)
	mux.HandleFunc("GET "+base+"/install", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/x-shellscript")
		_, _ = w.Write(installScript)
	})
	mux.HandleFunc("GET "+base+"/binary", a.sendAgent)
	return mux
}

// sendSettings answers with what the guest's agent is to do.
func (a *agent) sendSettings(w http.ResponseWriter, r *http.Request) {
	i, _ := metadata.FromContext(r.Context())
	s, ok := a.guests.agent(i.ID)
	if !ok { // removed since the request began
		http.Error(w, "this instance is not known", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s)
}

func (a *agent) sendAgent(w http.ResponseWriter, r *http.Request) {
	f, err := os.Open(a.cfg.GuestAgent)
	if a.cfg.GuestAgent == "" || errors.Is(err, fs.ErrNotExist) {
		http.Error(w, "this node has no guest agent to give: start its agent with --guest-agent FILE", http.StatusNotFound)
		return
	}
	if err != nil {
		a.log.Error("the guest agent's program cannot be read", "error", err)
		http.Error(w, "the guest agent's program cannot be read on the node", http.StatusInternalServerError)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	if info, err := f.Stat(); err == nil {
		http.ServeContent(w, r, "", info.ModTime(), f)
	}
}

// takeHeartbeat keeps what a guest's agent says for the next report. The answer is
// that of sendSettings, so that an enabled agent needs one request only. What a
// disabled agent says is not passed on, unless it is being enrolled: its code may be
// quicker than the flag.
func (a *agent) takeHeartbeat(w http.ResponseWriter, r *http.Request) {
	i, _ := metadata.FromContext(r.Context())
	var h api.AgentHeartbeat
	if err := json.NewDecoder(r.Body).Decode(&h); err != nil {
		http.Error(w, "the body is not a heartbeat in JSON", http.StatusBadRequest)
		return
	}
	if err := checkHeartbeat(h); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if s, ok := a.guests.agent(i.ID); ok && (s.Enabled || h.InstallCode != "") {
		a.reports.take(i.ID, h)
	}
	a.sendSettings(w, r)
}

// Bounds of what a guest may say; a guest is nobody's friend.
const (
	maxVersion = 64
	maxCode    = 128
	maxDetail  = 500
)

var (
	hashForm     = regexp.MustCompile(`^(sha256:[0-9a-f]{64})?$`)
	bootStatuses = []string{"running", "done", "degraded", "error", "disabled"}
)

func checkHeartbeat(h api.AgentHeartbeat) error {
	switch {
	case h.Version == "" || !isText(h.Version, maxVersion):
		return errors.New("version: 1 to 64 printable characters are needed")
	case !slices.Contains([]string{"", "ok", "error"}, h.ReconcileResult):
		return errors.New("reconcileResult is ok or error")
	case !isText(h.InstallCode, maxCode):
		return errors.New("installCode: at most 128 printable characters")
	case h.Boot == nil:
		return nil
	case !slices.Contains(bootStatuses, h.Boot.Status):
		return errors.New("boot.status is running, done, degraded, error or disabled")
	case !isText(h.Boot.Detail, maxDetail):
		return errors.New("boot.detail: at most 500 printable characters")
	case !hashForm.MatchString(h.Boot.UserDataHash):
		return errors.New("boot.userDataHash is sha256: and 64 hex digits")
	}
	return nil
}

func isText(s string, most int) bool {
	if len([]rune(s)) > most {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

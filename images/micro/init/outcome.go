package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// outcome leaves behind what cloud-init would, for the guest agent to read: the user-data that this boot ran, and how it
// ended.
type outcome struct {
	con *console
	dir string // the root of the file system
}

func (o outcome) begin(userData []byte) {
	err := os.MkdirAll(filepath.Join(o.dir, "run/cloud-init"), 0o755)
	if err == nil {
		err = o.write("var/lib/cloud/instance/user-data.txt", userData)
	}
	if err != nil {
		o.con.fact("outcome", "error", err)
	}
}

// end: problem is why the script failed, nil when it did not or when there was none.
func (o outcome) end(problem error) {
	errors := []string{}
	if problem != nil {
		errors = append(errors, fmt.Sprintf("('scripts-user', %v)", problem))
	}
	b, err := json.Marshal(map[string]any{"v1": map[string]any{"datasource": "micro", "errors": errors}})
	if err == nil {
		err = o.write("run/cloud-init/result.json", b)
	}
	if err != nil {
		o.con.fact("outcome", "error", err)
	}
}

// write makes the file whole at once: the agent reads at any moment.
func (o outcome) write(name string, b []byte) error {
	path := filepath.Join(o.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

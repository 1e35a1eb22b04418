package fake

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const suffix = ".json"

// load reads the VMs of a directory and makes it if it is missing.
func load(dir string) (map[string]*vm, error) {
	vms := make(map[string]*vm)
	if dir == "" {
		return vms, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		v := new(vm)
		if err := json.Unmarshal(text, v); err != nil {
			return nil, fmt.Errorf("%s is damaged; remove it: %w", e.Name(), err)
		}
		if v.Spec.ID != id {
			return nil, fmt.Errorf("%s holds VM %q; remove it", e.Name(), v.Spec.ID)
		}
		vms[id] = v
	}
	return vms, nil
}

// save writes a VM so that a kill at any moment leaves the old or the new one.
func save(dir string, v *vm) error {
	if dir == "" {
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, v.Spec.ID+suffix)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func forget(dir, id string) error {
	if dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(dir, id+suffix)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// mark says which epoch the VM that runs, or ran last, belongs to. It is written
// with the VM down and before the boot, so a VM that is up is always of the
// epoch in its mark. The zero mark is of a VM that was never started.
type mark struct {
	Epoch int64 `json:"epoch"`
	// Started: the boot of this epoch was seen to succeed. A VM that is down
	// with it ended by itself; without it the boot may not have happened.
	Started bool `json:"started"`
}

func readMark(dir string) (mark, error) {
	var m mark
	b, err := os.ReadFile(filepath.Join(dir, fileState))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return m, fmt.Errorf("what was last done with the VM is not known, so it is left as it is (%w); terminate it, or put the file right", err)
	}
	return m, nil
}

func (m mark) write(dir string) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, fileState), b)
}

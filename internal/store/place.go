package store

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// Placed is an instance that got a node: NodeID is set and Message empty.
type Placed struct {
	Instance *Instance
	Allocation
	Interface *vpc.Interface // that it gets with it, or nil
}

// Place writes down where instances go, what they hold there, and that their nodes
// have to look; ErrStale when one of them changed since it was read. It takes a
// few statements for all of them.
func (tx *Tx) Place(all []Placed) error {
	if _, err := tx.LockPlacement(); err != nil {
		return err
	}
	for _, step := range []func([]Placed) error{tx.placeInstances, tx.placeAllocations, tx.placeInterfaces, tx.placeEvents, tx.placeNodes} {
		if err := step(all); err != nil {
			return err
		}
	}
	return nil
}

func (tx *Tx) placeInstances(all []Placed) error {
	n, err := bulk(tx, all, `UPDATE instances SET node_id = v.column2, message = '', changed_at = v.column4, version = version + 1
		FROM (VALUES `, `) AS v WHERE instances.id = v.column1 AND instances.version = v.column3`, "TEXT,TEXT,BIGINT,BIGINT",
		func(p *Placed) []any { return []any{p.Instance.ID, p.NodeID, p.Instance.version, micros(tx.Now)} })
	if err != nil {
		return err
	}
	if n != int64(len(all)) {
		return ErrStale
	}
	for i := range all {
		all[i].Instance.version++
	}
	_, err = bulk(tx, all, `UPDATE volumes SET node_id = v.column2 FROM (VALUES `, `) AS v WHERE volumes.instance_id = v.column1 AND volumes.instance_id <> ''`,
		"TEXT,TEXT", func(p *Placed) []any { return []any{p.Instance.ID, p.NodeID} })
	return err
}

func (tx *Tx) placeAllocations(all []Placed) error {
	if _, err := bulk(tx, all, `INSERT INTO allocations (instance_id, purpose, node_id, project_id, vcpus, memory_bytes, disk_bytes, group_id, group_partition) VALUES `,
		` ON CONFLICT (instance_id, purpose) DO UPDATE SET node_id = excluded.node_id, project_id = excluded.project_id, vcpus = excluded.vcpus,
		memory_bytes = excluded.memory_bytes, disk_bytes = excluded.disk_bytes, group_id = excluded.group_id, group_partition = excluded.group_partition`,
		"TEXT,TEXT,TEXT,TEXT,BIGINT,BIGINT,BIGINT,TEXT,BIGINT", func(p *Placed) []any {
			return []any{p.InstanceID, p.Purpose, p.NodeID, p.ProjectID, p.Usage.VCPUs, p.Usage.MemoryBytes, p.Usage.DiskBytes, p.Seat.Group, p.Seat.Partition}
		}); err != nil {
		return err
	}
	for i := range all {
		if len(all[i].Countables) > 0 {
			if err := tx.putCountables(&all[i].Allocation); err != nil {
				return err
			}
		}
	}
	return nil
}

func (tx *Tx) placeInterfaces(all []Placed) error {
	var cards []*vpc.Interface
	last := map[string]*vpc.Interface{} // by subnet
	for i := range all {
		if f := all[i].Interface; f != nil {
			cards = append(cards, f)
			last[f.SubnetID] = f
		}
	}
	if _, err := bulk(tx, cards, `INSERT INTO interfaces (id, subnet_id, instance_id, device_index, mac, address, auto, released_at) VALUES `, ``,
		"TEXT,TEXT,TEXT,BIGINT,TEXT,TEXT,BOOLEAN,BIGINT", func(f **vpc.Interface) []any {
			c := *f
			return []any{c.ID, c.SubnetID, c.InstanceID, c.DeviceIndex, c.MAC.String(), c.Address.String(), c.AutoProvisioned, 0}
		}); err != nil {
		return err
	}
	for _, f := range last {
		if err := tx.setLastAddress(f); err != nil {
			return err
		}
	}
	return nil
}

func (tx *Tx) placeEvents(all []Placed) error {
	_, err := bulk(tx, all, `INSERT INTO events (instance_id, id, at, actor, event, state, message)
		SELECT v.column1, (SELECT COALESCE(MAX(e.id), 0) + 1 FROM events e WHERE e.instance_id = v.column1), v.column4, 'system', 'placed', v.column2, v.column3
		FROM (VALUES `, `) AS v`, "TEXT,TEXT,TEXT,BIGINT", func(p *Placed) []any {
		return []any{p.Instance.ID, string(p.Instance.State), "on node " + p.NodeID, micros(tx.Now)}
	})
	return err
}

func (tx *Tx) placeNodes(all []Placed) error {
	seen := map[string]bool{}
	var nodes []string
	for i := range all {
		if id := all[i].NodeID; !seen[id] {
			seen[id] = true
			nodes = append(nodes, id)
		}
	}
	if _, err := bulk(tx, nodes, `UPDATE node_liveness SET revision = revision + 1, desired = desired + 1 FROM (VALUES `, `) AS v WHERE node_liveness.node_id = v.column1`,
		"TEXT", func(id *string) []any { return []any{*id} }); err != nil {
		return err
	}
	_, err := bulk(tx, nodes, `INSERT INTO placement_changes (node_id, seq, record) VALUES `, ` ON CONFLICT (node_id) DO UPDATE SET seq = excluded.seq`,
		"TEXT,BIGINT,BIGINT", func(id *string) []any { return []any{*id, tx.placementSeq, 0} })
	return err
}

// beatColumns are the values of a heartbeat's row.
const beatColumns = 4

// bulk runs a statement with many rows of values in it: before, then the rows,
// then after. types are those of a row's values, as PostgreSQL cannot tell by
// itself. It answers the number of rows that were touched.
func bulk[T any](tx *Tx, items []T, before, after, types string, row func(*T) []any) (touched int64, err error) {
	columns := strings.Split(types, ",")
	for len(items) > 0 {
		// Twice the values of a statement of heartbeats (see dialect) were measured to be
		// best; and a power of two of rows, so that there are few different statements.
		most := max(1, 2*tx.rows*beatColumns/len(columns))
		n := 1 << (bits.Len(uint(min(len(items), most))) - 1)
		args := make([]any, 0, n*len(columns))
		for i := range n {
			args = append(args, row(&items[i])...)
		}
		did, err := tx.exec(before+values(columns, n)+after, args...)
		if err != nil {
			return touched, err
		}
		touched += did
		items = items[n:]
	}
	return touched, nil
}

// values writes n rows of numbered parameters.
func values(columns []string, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('(')
		for c, t := range columns {
			if c > 0 {
				b.WriteByte(',')
			}
			b.WriteString("CAST($" + strconv.Itoa(i*len(columns)+c+1) + " AS " + t + ")")
		}
		b.WriteByte(')')
	}
	return b.String()
}

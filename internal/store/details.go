package store

import (
	"encoding/json"
	"errors"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// Details are what hangs on an instance: cards, volumes, what is known of its
// agent.
type Details struct {
	Agent      compute.Agent
	Interfaces []vpc.Interface  // primary first
	Volumes    []compute.Volume // root first
	GroupName  string           // of its placement group; empty when it is in none
}

// which says of which instances the details are wanted: a condition on their id.
type which struct {
	condition string
	args      []any
}

// DetailsOf reads the details of one instance.
func (tx *Tx) DetailsOf(id string) (*Details, error) {
	all, err := tx.details(which{"= $1", []any{id}})
	if err != nil {
		return nil, err
	}
	return all.Of(id), nil
}

// DetailsByID is what the details of several instances come as.
type DetailsByID map[string]*Details

// Of is never nil.
func (d DetailsByID) Of(id string) *Details {
	if d[id] == nil {
		d[id] = &Details{}
	}
	return d[id]
}

// DetailsOfPage reads the details of the instances that Instances reads with the
// same arguments.
func (tx *Tx) DetailsOfPage(projectID string, after Cursor, limit int) (DetailsByID, error) {
	return tx.details(which{`IN (SELECT id FROM instances WHERE project_id = $1 AND (created_at, id) > ($2, $3) ORDER BY created_at, id LIMIT $4)`,
		[]any{projectID, after.At, after.ID, limit}})
}

// DetailsOn reads the details of the instances that InstancesOn reads.
func (tx *Tx) DetailsOn(nodeID string) (DetailsByID, error) {
	return tx.details(which{`IN (SELECT id FROM instances WHERE node_id = $1 AND node_id <> '' AND state <> 'terminated')`, []any{nodeID}})
}

// DetailsOfGroup reads the details of the instances that GroupMembers reads.
func (tx *Tx) DetailsOfGroup(groupID string) (DetailsByID, error) {
	return tx.details(which{`IN (SELECT id FROM instances WHERE placement_group_id = $1 AND placement_group_id <> '' AND state <> 'terminated')`, []any{groupID}})
}

func (tx *Tx) details(w which) (DetailsByID, error) {
	out := DetailsByID{}
	// <> '' makes the databases see that their partial indexes hold all that is sought.
	err := tx.each(interfaceSelect+`WHERE f.instance_id <> '' AND f.instance_id `+w.condition+` ORDER BY f.device_index`, w.args, func(scan scanFunc) error {
		f, err := scanInterface(scan)
		d := out.Of(f.InstanceID)
		d.Interfaces = append(d.Interfaces, f)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = tx.each(volumeSelect+`WHERE instance_id <> '' AND instance_id `+w.condition+` ORDER BY device`, w.args, func(scan scanFunc) error {
		v, err := scanVolume(scan)
		d := out.Of(v.InstanceID)
		d.Volumes = append(d.Volumes, v)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = tx.each(`SELECT i.id, g.name FROM instances i JOIN placement_groups g ON g.id = i.placement_group_id WHERE i.placement_group_id <> '' AND i.id `+w.condition, w.args, func(scan scanFunc) error {
		var id, name string
		err := scan(&id, &name)
		out.Of(id).GroupName = name
		return err
	})
	if err != nil {
		return nil, err
	}
	err = tx.each(`SELECT instance_id, doc FROM instance_agents WHERE instance_id `+w.condition, w.args, func(scan scanFunc) error {
		var id, doc string
		if err := scan(&id, &doc); err != nil {
			return err
		}
		return json.Unmarshal([]byte(doc), &out.Of(id).Agent)
	})
	return out, err
}

// Agent reads what is known of an instance's agent; the zero Agent when nothing is.
func (tx *Tx) Agent(instanceID string) (a compute.Agent, err error) {
	var doc string
	if err = tx.get(`SELECT doc FROM instance_agents WHERE instance_id = $1`, []any{instanceID}, &doc); err != nil {
		if errors.Is(err, ErrNotFound) {
			err = nil
		}
		return a, err
	}
	return a, json.Unmarshal([]byte(doc), &a)
}

// PutAgent writes what is known of an instance's agent.
func (tx *Tx) PutAgent(instanceID string, a *compute.Agent) error {
	doc, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO instance_agents (instance_id, doc) VALUES ($1, $2) ON CONFLICT (instance_id) DO UPDATE SET doc = excluded.doc`,
		instanceID, string(doc))
	return err
}

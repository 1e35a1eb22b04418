package metadata

import (
	"cmp"
	"crypto"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// versions are the trees that EC2 has had; clients pin one. We serve the same content under each.
var versions = []string{
	"1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10", "2007-12-15", "2008-02-01", "2008-09-01", "2009-04-04",
	"2011-01-01", "2011-05-01", "2012-01-12", "2014-02-25", "2014-11-05", "2015-10-20", "2016-04-19", "2016-06-30",
	"2016-09-02", "2018-03-28", "2018-08-17", "2018-09-24", "2019-10-01", "2020-10-27", "2021-01-03", "2021-03-23",
	"2021-07-15", "2022-09-24", "2024-04-11", "latest",
}

var (
	versionList = strings.Join(versions, "\n")
	isVersion   = func() map[string]bool {
		m := map[string]bool{}
		for _, v := range versions {
			m[v] = true
		}
		return m
	}()
)

// tree is an instance's metadata below a version, rendered: the text of every path. A directory is there with and
// without its slash; its text is the listing, one name a line, directories with a slash.
type tree struct {
	instance  *Instance
	text      map[string]string
	signature func() string // made when first asked for
}

const (
	userDataPath  = "user-data"
	identityDir   = "dynamic/instance-identity/"
	documentPath  = identityDir + "document"
	signaturePath = identityDir + "signature"
	tagsDir       = "meta-data/tags/instance/"
	keysDir       = "meta-data/public-keys/"
)

func render(i *Instance, signer crypto.Signer, domain string) *tree {
	t := &tree{instance: i, text: map[string]string{}}
	put := func(path, value string) {
		if value != "" {
			t.text[path] = value
		}
	}
	meta := func(path, value string) { put("meta-data/"+path, value) }

	meta("ami-id", i.ImageID)
	meta("ami-launch-index", "0")
	meta("hostname", i.Hostname)
	meta("instance-action", "none")
	meta("instance-id", cmp.Or(i.RerunID, i.ID))
	meta("instance-life-cycle", "on-demand")
	meta("instance-type", i.Type)
	meta("local-hostname", i.Hostname)
	meta("placement/availability-zone", i.Zone)
	meta("placement/region", i.Region)
	meta("placement/group-name", i.PlacementGroup)
	meta("public-hostname", i.PublicHostname)
	meta("public-ipv4", publicIPv4(i))
	meta("security-groups", securityGroups(i))
	meta("services/domain", domain)
	meta("services/partition", "outcrop")
	for n, f := range i.Interfaces {
		f.put(i, n, meta)
	}
	for n, k := range i.PublicKeys {
		put(keysDir+strconv.Itoa(n)+"/openssh-key", k.Line)
	}
	document := identityDocument(i)
	put(documentPath, document)
	if signer != nil {
		put(signaturePath, "made when asked for")
		t.signature = sync.OnceValue(func() string { return signDocument(signer, document) })
	}
	if i.UserData != nil {
		put(userDataPath, "served as bytes")
	}
	if i.Options.Tags {
		for k, v := range i.Tags {
			t.text[tagsDir+k] = v // may be empty, may have slashes in its key
		}
	}
	t.list()
	return t
}

// put renders the interface. The first is the instance's primary one.
func (f Interface) put(i *Instance, n int, meta func(path, value string)) {
	if n == 0 {
		meta("mac", f.MAC)
		meta("local-ipv4", f.Address.String())
	}
	at := "network/interfaces/macs/" + f.MAC + "/"
	meta(at+"device-number", strconv.Itoa(n))
	meta(at+"interface-id", f.ID)
	meta(at+"local-hostname", i.Hostname)
	meta(at+"local-ipv4s", f.Address.String())
	meta(at+"mac", f.MAC)
	meta(at+"owner-id", i.ProjectID)
	meta(at+"security-groups", securityGroups(i))
	meta(at+"subnet-id", f.SubnetID)
	meta(at+"vpc-id", f.VPCID)
	if f.Subnet.IsValid() {
		meta(at+"subnet-ipv4-cidr-block", f.Subnet.String())
	}
	if f.VPC.IsValid() {
		meta(at+"vpc-ipv4-cidr-block", f.VPC.String())
		meta(at+"vpc-ipv4-cidr-blocks", f.VPC.String())
	}
	if n == 0 {
		meta(at+"public-hostname", i.PublicHostname)
		meta(at+"public-ipv4s", publicIPv4(i))
	}
}

func publicIPv4(i *Instance) string {
	if !i.PublicIPv4.IsValid() {
		return ""
	}
	return i.PublicIPv4.String()
}

func securityGroups(i *Instance) string {
	if len(i.SecurityGroups) == 0 {
		return "default"
	}
	return strings.Join(i.SecurityGroups, "\n")
}

// list adds every directory's listing to the texts.
func (t *tree) list() {
	children := map[string][]string{}
	add := func(dir, name string) {
		if !slices.Contains(children[dir], name) {
			children[dir] = append(children[dir], name)
		}
	}
	for path := range t.text {
		if key, isTag := strings.CutPrefix(path, tagsDir); isTag {
			add(tagsDir, key) // a tag's key is one name, slashes or not
			path = tagsDir
		}
		if path == documentPath && t.instance.RerunID != "" {
			continue // see RerunID
		}
		for dir, name := parent(path); name != ""; dir, name = parent(dir) {
			if dir == "" {
				name = strings.TrimSuffix(name, "/") // the first level is listed without slashes, as EC2 does
			}
			add(dir, name)
		}
	}
	if n := len(t.instance.PublicKeys); n > 0 {
		children[keysDir] = nil
		for n, k := range t.instance.PublicKeys {
			add(keysDir, strconv.Itoa(n)+"="+k.Name)
		}
	}
	for dir, names := range children {
		slices.Sort(names)
		t.text[dir] = strings.Join(names, "\n")
		t.text[strings.TrimSuffix(dir, "/")] = t.text[dir]
	}
}

// parent splits a path into its directory and its last name, which keeps its slash when it is a directory.
func parent(path string) (dir, name string) {
	n := strings.LastIndexByte(strings.TrimSuffix(path, "/"), '/') + 1
	return path[:n], path[n:]
}

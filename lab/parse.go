package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/yamlhint"
	"go.yaml.in/yaml/v3"
)

// maxFile is the largest topology file that is read, in bytes.
const maxFile = 4 << 20

// ParseFile reads a topology from a YAML file. Its name, unless the file gives
// one, is the file's or, for a file called lab.yaml, the directory's.
func ParseFile(path string) (*Topology, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &onpath.Error{Code: onpath.CodeInvalid, Place: path, Cause: err,
			Message: "cannot read the topology: " + errors.Unwrap(err).Error(),
			Remedy:  "name a file that describes a lab, such as examples/lab/router.yaml"}
	}
	defer f.Close()
	t, err := Parse(f, path)
	if err != nil || t.Name != "" {
		return t, err
	}
	t.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	if abs, err := filepath.Abs(path); err == nil && t.Name == "lab" {
		t.Name = filepath.Base(filepath.Dir(abs))
	}
	if !nodeName.MatchString(t.Name) {
		t.Name = "lab"
	}
	return t, nil
}

// Parse reads a topology. file names it in errors, which are onpath.Errors
// with places file:line:column.
func Parse(r io.Reader, file string) (*Topology, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		e := onpath.Errorf(onpath.CodeInvalid, "cannot read the topology: %w", errors.Unwrap(err))
		e.Place, e.Remedy = file, "name a file that describes a lab: docs/lab.md"
		return nil, e
	}
	p := parser{decoder: decoder{file: file}, topology: &Topology{}, placeOf: map[any]*yaml.Node{}}
	root, err := p.document(text)
	if err != nil {
		return nil, err
	}
	t := p.topology
	p.mapping(root, "",
		entry{"name", p.labName},
		entry{"hosts", p.hosts},
		entry{"switches", p.switches},
		entry{"links", p.links})
	if len(p.errs) == 0 {
		p.check()
	}
	if err := p.errs.Err(); err != nil {
		return nil, err
	}
	return t, nil
}

// parser fills a Topology and remembers where things stood for check.
type parser struct {
	decoder
	topology *Topology
	placeOf  map[any]*yaml.Node // *Host, *Switch, *Link, *Interface, *Route, …
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

// document is the only document's root node.
func (p *parser) document(text []byte) (*yaml.Node, error) {
	invalid := func(line int, message, remedy string) error {
		return onpath.Errors{{Code: onpath.CodeInvalid, Place: fmt.Sprintf("%s:%d:1", p.file, line), Message: message, Remedy: remedy}}
	}
	if len(text) > maxFile {
		return nil, invalid(1, fmt.Sprintf("the file is larger than %d MiB", maxFile>>20), "split it, or make it smaller")
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return nil, invalid(1+bytes.Count(text[:i], []byte("\n")), "this is not a text file", "")
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, invalid(1, "the file is empty", "give it hosts and links")
		}
		m := yamlLine.FindStringSubmatch(err.Error())
		line := 1
		if m[1] != "" {
			line, _ = strconv.Atoi(m[1])
		}
		return nil, invalid(line, yamlhint.Plain(m[2]), yamlhint.Remedy(m[2]))
	}
	if err := dec.Decode(&second); err == nil {
		return nil, invalid(second.Line, "a second document begins here", "a topology is one document")
	}
	return doc.Content[0], nil
}

func (p *parser) labName(n *yaml.Node, field string) {
	if s, ok := p.scalar(n, field); ok {
		p.topology.Name = s
		p.checkName(n, field, s)
	}
}

// nodeName is what labs, hosts, switches and commands may be called. They
// become parts of file names.
var nodeName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// deviceName is what the kernel takes as an interface's name, and what can
// stand in a file name.
var deviceName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`)

func (p *parser) checkName(n *yaml.Node, field, s string) {
	if !nodeName.MatchString(s) {
		p.fail(n, field, "", "%s is not a name: a lower-case letter first, then letters, digits and hyphens, at most 31 in all", quoted(s))
	}
}

func (p *parser) hosts(n *yaml.Node, field string) {
	p.pairs(n, field, func(key, value *yaml.Node) {
		p.checkName(key, field, key.Value)
		h := &Host{Name: key.Value}
		p.topology.Hosts = append(p.topology.Hosts, h)
		p.placeOf[h] = key
		field := below(field, h.Name)
		p.mapping(value, field,
			entry{"interfaces", func(n *yaml.Node, f string) { p.interfaces(h, n, f) }},
			entry{"routes", func(n *yaml.Node, f string) { p.routes(h, n, f) }},
			entry{"forwarding", p.boolean(&h.Forwarding)},
			entry{"sysctls", func(n *yaml.Node, f string) { p.sysctls(h, n, f) }},
			entry{"mounts", func(n *yaml.Node, f string) { p.mounts(h, n, f) }},
			entry{"private", func(n *yaml.Node, f string) { p.paths(&h.OwnPaths, n, f) }},
			entry{"share", func(n *yaml.Node, f string) { p.paths(&h.Share, n, f) }},
			entry{"commands", func(n *yaml.Node, f string) { p.commands(h, n, f) }})
		if !h.Private && len(h.OwnPaths)+len(h.Share) > 0 {
			p.fail(key, field, "add mounts: private", "private and share mean nothing to a host that shares the machine's mounts")
		}
	})
}

func (p *parser) interfaces(h *Host, n *yaml.Node, field string) {
	p.pairs(n, field, func(key, value *yaml.Node) {
		f := &Interface{Name: key.Value}
		h.Interfaces = append(h.Interfaces, f)
		p.placeOf[f] = key
		field := below(field, key.Value)
		if !deviceName.MatchString(f.Name) {
			p.fail(key, field, "", "%s is not an interface's name: a letter, then letters, digits, '_', '-', '.', at most 15", quoted(f.Name))
		}
		addresses := func(n *yaml.Node, field string) {
			p.list(n, field, func(n *yaml.Node, field string) { p.address(f, n, field) })
		}
		if value.Kind == yaml.SequenceNode { // short form
			addresses(value, field)
			return
		}
		p.mapping(value, field,
			entry{"addresses", addresses},
			entry{"mac", func(n *yaml.Node, field string) { p.mac(f, n, field) }})
	})
}

func (p *parser) address(f *Interface, n *yaml.Node, field string) {
	s, ok := p.scalar(n, field)
	if !ok {
		return
	}
	a, err := netip.ParsePrefix(s)
	switch {
	case err != nil || a.Addr().Is4In6():
		p.fail(n, field, "write 10.1.0.2/24 or fd00::2/64", "%s is not an address with its prefix length", quoted(s))
	case a.Addr().IsMulticast() || a.Addr().IsUnspecified():
		p.fail(n, field, "", "%s cannot be an interface's address", s)
	case a == a.Masked() && a.Bits() < a.Addr().BitLen()-1:
		p.fail(n, field, "write a host's address, such as "+a.Addr().Next().String()+"/"+strconv.Itoa(a.Bits()), "%s is the network itself", s)
	default:
		f.Addresses = append(f.Addresses, a)
	}
}

func (p *parser) mac(f *Interface, n *yaml.Node, field string) {
	s, ok := p.scalar(n, field)
	if !ok {
		return
	}
	m, err := net.ParseMAC(s)
	if err != nil || len(m) != 6 || m[0]&1 != 0 || bytes.Equal(m, make([]byte, 6)) {
		p.fail(n, field, "write 02:00:00:00:00:01", "%s is not a host's Ethernet address", quoted(s))
		return
	}
	f.MAC = m.String()
}

func (p *parser) switches(n *yaml.Node, field string) {
	p.pairs(n, field, func(key, value *yaml.Node) {
		p.checkName(key, field, key.Value)
		s := &Switch{Name: key.Value}
		p.topology.Switches = append(p.topology.Switches, s)
		p.placeOf[s] = key
		p.mapping(value, below(field, s.Name),
			entry{"mtu", func(n *yaml.Node, field string) { p.mtu(&s.MTU, n, field) }})
	})
}

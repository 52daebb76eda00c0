package lab

import (
	"net/netip"
	"path"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// routes reads "auto", or a list of routes that may hold "auto".
func (p *parser) routes(h *Host, n *yaml.Node, field string) {
	if n.Kind == yaml.ScalarNode {
		if n.Value != "auto" {
			p.fail(n, field, "write auto, or a list of {to, via}", "%s is not a way to get routes", quoted(n.Value))
		}
		h.AutoRoutes = true
		return
	}
	p.list(n, field, func(n *yaml.Node, field string) {
		if n.Kind == yaml.ScalarNode && n.Value == "auto" {
			h.AutoRoutes = true
			return
		}
		p.route(h, n, field)
	})
}

func (p *parser) route(h *Host, n *yaml.Node, field string) {
	var r Route
	var to, via string
	failed := len(p.errs)
	p.mapping(n, field,
		entry{"to", func(n *yaml.Node, field string) { to, _ = p.scalar(n, field) }},
		entry{"via", func(n *yaml.Node, field string) {
			via, _ = p.scalar(n, field)
			var err error
			if r.Via, err = netip.ParseAddr(via); err != nil || r.Via.Zone() != "" {
				p.fail(n, field, "", "%s is not an address", quoted(via))
			}
		}},
		entry{"device", func(n *yaml.Node, field string) { r.Device, _ = p.scalar(n, field) }})
	if len(p.errs) > failed {
		return
	}
	if via == "" && r.Device == "" {
		p.fail(n, field, "write {to: default, via: 10.1.0.1}", "says neither via which address nor out of which device")
		return
	}
	switch {
	case to == "":
		p.fail(n, field, "write {to: default, via: 10.1.0.1}", "does not say where to")
		return
	case to == "default" && via == "":
		p.fail(n, field, "write to: 0.0.0.0/0 or to: ::/0", "default without via says nothing about IPv4 or IPv6")
		return
	case to == "default":
		r.To = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.Via.Is6() {
			r.To = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	default:
		var err error
		if r.To, err = parsePrefix(to); err != nil {
			p.fail(n, field, "write default, 10.0.0.0/8 or 2001:db8::/32", "%s is not a prefix", quoted(to))
			return
		}
		if r.To != r.To.Masked() {
			p.fail(n, field, "write "+r.To.Masked().String(), "%s has bits set behind its length", to)
			return
		}
	}
	if via != "" && r.To.Addr().Is4() != r.Via.Is4() {
		p.fail(n, field, "", "%s and %s are not of the same IP version", r.To, r.Via)
		return
	}
	p.placeOf[r] = n
	h.Routes = append(h.Routes, r)
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

// sysctlName allows what belongs to a network namespace, and no way out of
// /proc/sys/net. Interface names with dots are written with slashes, as
// sysctl(8) does: net/ipv4/conf/eth0.1/rp_filter.
var sysctlName = regexp.MustCompile(`^net[./][A-Za-z0-9_./-]+$`)

func (p *parser) sysctls(h *Host, n *yaml.Node, field string) {
	p.dictionary(&h.Sysctls)(n, field)
	p.pairs(n, field, func(key, value *yaml.Node) {
		if !sysctlName.MatchString(key.Value) || strings.Contains(key.Value, "..") {
			p.fail(key, field, "only net.… belongs to a host", "%s is not a host's sysctl", quoted(key.Value))
		}
		if strings.Contains(value.Value, "\n") {
			p.fail(value, below(field, key.Value), "", "has more than one line")
		}
	})
}

func (p *parser) mounts(h *Host, n *yaml.Node, field string) {
	switch s, ok := p.scalar(n, field); {
	case !ok:
	case s == "private":
		h.Private = true
	case s != "shared":
		p.fail(n, field, "write private or shared", "%s is neither private nor shared", quoted(s))
	}
}

// paths reads a list of absolute paths other than the root.
func (p *parser) paths(to *[]string, n *yaml.Node, field string) {
	p.list(n, field, func(n *yaml.Node, field string) {
		s, ok := p.scalar(n, field)
		if !ok {
			return
		}
		if !path.IsAbs(s) || path.Clean(s) != s || s == "/" || strings.HasPrefix(s, "/proc") {
			p.fail(n, field, "write a whole path, such as /var/lib/containerd", "%s cannot be mounted on", quoted(s))
			return
		}
		*to = append(*to, s)
	})
}

func (p *parser) commands(h *Host, n *yaml.Node, field string) {
	p.list(n, field, func(n *yaml.Node, field string) {
		c := Command{}
		p.mapping(n, field,
			entry{"name", func(n *yaml.Node, field string) {
				c.Name, _ = p.scalar(n, field)
				p.checkName(n, field, c.Name)
			}},
			entry{"run", p.words(&c.Run)},
			entry{"env", p.dictionary(&c.Env)},
			entry{"directory", func(n *yaml.Node, field string) {
				if c.Directory, _ = p.scalar(n, field); !path.IsAbs(c.Directory) {
					p.fail(n, field, "write a whole path", "%s does not begin with /", quoted(c.Directory))
				}
			}})
		if n.Kind == yaml.MappingNode && (len(c.Run) == 0 || c.Run[0] == "") {
			p.fail(n, field, "write run: [program, argument]", "says nothing to run")
			return
		}
		if c.Name == "" && len(c.Run) > 0 {
			c.Name = commandName(c.Run[0])
		}
		for _, other := range h.Commands {
			if other.Name == c.Name {
				p.fail(n, field, "give this one another name", "another command of %s is called %s", h.Name, c.Name)
			}
		}
		h.Commands = append(h.Commands, c)
	})
}

var notInName = regexp.MustCompile(`[^a-z0-9-]+`)

// commandName makes a name of a program's path.
func commandName(program string) string {
	s := strings.Trim(notInName.ReplaceAllString(strings.ToLower(path.Base(program)), "-"), "-")
	if !nodeName.MatchString(s) {
		return "command"
	}
	return s
}

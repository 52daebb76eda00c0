// Package config reads the configuration file of server and node. Flags
// override what it says.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/manifest"
)

// Where things are unless a file or flag says otherwise.
const (
	DefaultPath      = "/etc/onpath/onpath.yaml"
	DefaultSocket    = "/run/onpath/server.sock"
	DefaultServerDir = "/var/lib/onpath/server"
	DefaultNodeDir   = "/var/lib/onpath/node"
	DefaultPort      = 7443 // of the server's TLS listener, where one is asked for
)

// MinFlows and MaxFlows bound the sizes of flow tables, in entries.
const (
	MinFlows = 1 << 10
	MaxFlows = 1 << 24
)

// Config is the whole file. A machine with one role leaves the other out.
type Config struct {
	Server Server `json:"server,omitzero"`
	Node   Node   `json:"node,omitzero"`
}

// Server configures `onpath server`.
type Server struct {
	// StateDir holds the embedded store, keys and images. Default /var/lib/onpath/server.
	StateDir string `json:"stateDir,omitempty"`
	// Socket is the unix socket for this machine. Default /run/onpath/server.sock.
	Socket string `json:"socket,omitempty"`
	// Listen is the address of the TLS listener for other machines, such as
	// "[::]:7443". Default none: only the socket.
	Listen string `json:"listen,omitempty"`
	// Address is HOST:PORT at which other machines reach Listen; join tokens
	// carry it. Default: Listen's, with this machine's address for a wildcard.
	Address string `json:"address,omitempty"`
	// PrivatePools are where instances' private addresses come from: at most
	// one prefix of each IP version, used for nothing else in the cloudlets.
	// Default 100.100.0.0/16 and fd6f:6e70:6174:6800::/64.
	PrivatePools []onpath.Prefix `json:"privatePools,omitempty"`
	// PublicPools are for functions with addresses: pool, likewise. Default none.
	PublicPools []onpath.Prefix `json:"publicPools,omitempty"`
	// DNS answers for the names of services.
	DNS DNS `json:"dns,omitzero"`
	// ImageQuota is how much of the disk one tenant's images may take. Default
	// 16Gi.
	ImageQuota onpath.Size `json:"imageQuota,omitempty"`
	// WebhookTargets are where webhooks of tenants may lead, beside public addresses:
	// those of the operator's own networks that tenants may reach from this machine.
	WebhookTargets []onpath.Prefix `json:"webhookTargets,omitempty"`
	// Metrics is the address of a plain HTTP listener for Prometheus, such as
	// "127.0.0.1:7444". Default none; the socket serves them too.
	Metrics string `json:"metrics,omitempty"`
	// Etcd names an external cluster; default is the embedded one.
	Etcd Etcd `json:"etcd,omitzero"`
	// Log is debug, info (default), warn or error.
	Log string `json:"log,omitempty"`
}

// DNS is the built-in name server.
type DNS struct {
	// Listen is its address, by UDP and TCP, such as "[::]:53". Default none.
	Listen string `json:"listen,omitempty"`
	// Name is the server's own in NS and SOA records, such as ns1.example.net. Default: the
	// zone's.
	Name string `json:"name,omitempty"`
}

// Etcd is an external cluster.
type Etcd struct {
	Endpoints []string `json:"endpoints,omitempty"`
	CA        string   `json:"ca,omitempty"`   // file with the CA's certificate
	Cert      string   `json:"cert,omitempty"` // file with our certificate
	Key       string   `json:"key,omitempty"`  // file with its key
}

// Node configures `onpath node`.
type Node struct {
	// Name of the node. Default: the machine's host name.
	Name     string `json:"name,omitempty"`
	Cloudlet string `json:"cloudlet,omitempty"` // default the token's, else "default"
	// Server is unix:///run/onpath/server.sock or https://HOST:PORT. Default: the
	// one that the token names or the node has joined, else this machine's.
	Server string `json:"server,omitempty"`
	// Token joins the node to the server the first time; TokenFile holds one.
	Token     string `json:"token,omitempty"`
	TokenFile string `json:"tokenFile,omitempty"`
	// StateDir holds the plan in force and the instances' records. One agent
	// each. Default /var/lib/onpath/node.
	StateDir string `json:"stateDir,omitempty"`
	// Underlay is the address by which other nodes reach this one. Default: the
	// address that leads to the server, or the machine's first.
	Underlay onpath.Underlay `json:"underlay,omitzero"`
	Uplinks  []onpath.Uplink `json:"uplinks,omitempty"`
	Capacity Resources       `json:"capacity,omitzero"`
	// Containerd is the socket of a containerd. Default: a private one.
	Containerd string `json:"containerd,omitempty"`
	// HostImage permits functions with image: host, which see this machine's
	// files read-only. For laboratories.
	HostImage bool `json:"hostImage,omitempty"`
	// Blocks are the building blocks that modules of wasm functions may use here, such as
	// kv/1. Default: all that there are. A function that uses another is not placed here.
	Blocks []string `json:"blocks,omitempty"`
	// ModuleSources are the operator's own networks from which the modules of leases may be
	// fetched, beside public addresses.
	ModuleSources []onpath.Prefix `json:"moduleSources,omitempty"`
	// FetchTargets are the operator's own networks from which modules may fetch (fetch/1),
	// beside public addresses.
	FetchTargets []onpath.Prefix `json:"fetchTargets,omitempty"`
	// ModuleDisk is the most that the blobs (blob/1) of one instance may have on the disk.
	// Default 1Gi.
	ModuleDisk onpath.Size `json:"moduleDisk,omitempty"`
	// SetForwarding lets the agent turn IP forwarding on for routing uplinks.
	SetForwarding bool `json:"setForwarding,omitempty"`
	// Flows is the size of the table of established flows, PendingFlows that of
	// each tenant's table of flows that begin, in entries of 152 bytes, rounded
	// up to powers of two. Default: a 64th of the memory, 2097152 on 24 GB (131072 in a
	// network namespace of its own), and a sixteenth of that.
	Flows        int `json:"flows,omitempty"`
	PendingFlows int `json:"pendingFlows,omitempty"`
	// Metrics is the address of a plain HTTP listener for Prometheus. Default none.
	Metrics string `json:"metrics,omitempty"`
	// Log is debug, info (default), warn or error.
	Log string `json:"log,omitempty"`
	// namePlace is where a file says Name, file:line:column; "": none does.
	namePlace string
}

// Resources limits what instances may use; default: what the machine has.
type Resources = onpath.Resources

// Load reads the file. A file at DefaultPath need not exist.
func Load(path string) (*Config, error) {
	c := &Config{}
	p := path
	if p == "" {
		p = DefaultPath
		if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) {
			return c, nil
		}
	}
	doc, err := manifest.ReadStrict(p, c)
	if err == nil && c.Node.Name != "" {
		c.Node.namePlace = doc.PlaceOf("node.name")
	}
	return c, err
}

// Complete fills in defaults and checks the server's part.
func (s *Server) Complete() error {
	def(&s.StateDir, DefaultServerDir)
	def(&s.Socket, DefaultSocket)
	def(&s.Log, "info")
	es := append(pools("server.privatePools", s.PrivatePools), pools("server.publicPools", s.PublicPools)...)
	for _, l := range []struct{ field, address string }{{"server.listen", s.Listen}, {"server.address", s.Address},
		{"server.metrics", s.Metrics}, {"server.dns.listen", s.DNS.Listen}} {
		if l.address == "" {
			continue
		}
		es = append(es, hostPort(l.field, l.address, l.field != "server.address")...)
	}
	if s.Address == "" && s.Listen != "" && len(es) == 0 {
		s.Address = reachable(s.Listen)
	}
	for i, e := range s.Etcd.Endpoints {
		scheme, address, ok := strings.Cut(e, "://")
		if !ok {
			scheme, address = "", e
		}
		if member := hostPort("", strings.TrimSuffix(address, "/"), false); len(member) > 0 && scheme != "unix" ||
			!slices.Contains([]string{"", "http", "https", "unix"}, scheme) {
			es = append(es, wrong(fmt.Sprintf("server.etcd.endpoints[%d]", i), "write http://HOST:2379 or https://HOST:2379",
				"%q is not the address of an etcd member", e))
		}
	}
	if (s.Etcd.CA != "" || s.Etcd.Cert != "" || s.Etcd.Key != "") && len(s.Etcd.Endpoints) == 0 {
		es = append(es, wrong("server.etcd.endpoints", "write the cluster's addresses, or take etcd out", "is missing"))
	}
	if (s.Etcd.Cert == "") != (s.Etcd.Key == "") {
		es = append(es, wrong("server.etcd", "write both or neither", "has one of cert and key"))
	}
	return append(es, level("server.log", s.Log)...).Err()
}

// Complete fills in defaults and checks the node's part. hostname is the
// machine's.
func (n *Node) Complete(hostname string) error {
	def(&n.StateDir, DefaultNodeDir)
	def(&n.Log, "info")
	es := level("node.log", n.Log)
	es = append(es, n.readToken()...)
	if n.Name == "" {
		n.Name = n.joinedName()
	}
	if n.Name == "" {
		name, _, _ := strings.Cut(strings.ToLower(hostname), ".")
		n.Name = strings.Trim(strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
				return r
			}
			return '-'
		}, name), "-")
	}
	if e := CheckName(n.Name); e != nil && n.namePlace != "" {
		e.Place, e.Field = n.namePlace, "node.name"
		es = append(es, e)
	}
	if n.Metrics != "" {
		es = append(es, hostPort("node.metrics", n.Metrics, true)...)
	}
	if scheme, rest, ok := strings.Cut(n.Server, "://"); ok && (rest == "" || scheme != "unix" && scheme != "https") {
		es = append(es, wrong("node.server", "write unix:///PATH or https://HOST:PORT", "a server is not reached at %q", n.Server))
	} else if ok && scheme == "https" {
		es = append(es, hostPort("node.server", rest, false)...)
	}
	for _, f := range []struct {
		field string
		n     int
	}{{"node.flows", n.Flows}, {"node.pendingFlows", n.PendingFlows}} {
		if f.n != 0 && (f.n < MinFlows || f.n > MaxFlows) {
			es = append(es, wrong(f.field, fmt.Sprintf("write %d to %d entries", MinFlows, MaxFlows), "%d is out of range", f.n))
		}
	}
	return es.Err()
}

// readToken takes the token from its file.
func (n *Node) readToken() (es onpath.Errors) {
	if n.Token != "" && n.TokenFile != "" {
		es = append(es, wrong("node.token", "keep one of them", "both token and tokenFile are given"))
	}
	if n.Token == "" && n.TokenFile != "" {
		b, err := os.ReadFile(n.TokenFile)
		if errors.Is(err, fs.ErrNotExist) && auth.Joined(n.Identity()) {
			err = nil // it was needed once
		}
		if err != nil {
			es = append(es, wrong("node.tokenFile",
				"write the token there (on the server, onpath token create --node NAME), or name it with token", "%v", err))
		}
		n.Token = strings.TrimSpace(string(b))
	}
	return es
}

// joinedName is the name by which the server knows this machine, or for which its token is;
// "": neither says one.
func (n *Node) joinedName() string {
	if auth.Joined(n.Identity()) {
		if h, err := auth.OpenHolder(n.Identity()); err == nil {
			if who, err := h.Identity(); err == nil && who.Role == auth.RoleNode {
				return who.Name
			}
		}
	}
	t, err := auth.ParseToken(n.Token)
	if err != nil {
		return "" // joining with it says why
	}
	return t.Node
}

// CheckName refuses what no node can be called.
func CheckName(name string) *onpath.Error {
	var all onpath.Errors
	if err := (&onpath.Node{Metadata: onpath.Metadata{Name: name}}).Validate(); !errors.As(err, &all) {
		return nil
	}
	for _, e := range all {
		if e.Field == "metadata.name" {
			return &onpath.Error{Code: onpath.CodeInvalid, Message: e.Message, Remedy: e.Remedy}
		}
	}
	return nil
}

// Identity is the folder with the certificate by which the server knows the node.
func (n *Node) Identity() string { return filepath.Join(n.StateDir, "identity") }

// Spec is the node as it describes itself to the server. It fails if what the
// file says is not a node.
func (n *Node) Spec() (onpath.NodeSpec, error) {
	o := &onpath.Node{
		Metadata: onpath.Metadata{Name: n.Name},
		Spec: onpath.NodeSpec{Cloudlet: cmp.Or(n.Cloudlet, onpath.DefaultTenant), Underlay: n.Underlay, Uplinks: n.Uplinks,
			Capacity: n.Capacity},
	}
	err := o.Validate()
	o.Spec.Cloudlet = n.Cloudlet // "": the token's, which the server knows
	return o.Spec, err
}

// ParseUplink reads the flag --uplink: DEVICE[:ATTACH[:SIDE]], called by its
// device's name. The default is a router.
func ParseUplink(s string) (onpath.Uplink, error) {
	p := strings.Split(s, ":")
	u := onpath.Uplink{Device: p[0], Name: strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(p[0])),
		Attach: onpath.AttachRouter}
	if len(p) > 1 {
		u.Attach = onpath.Attach(p[1])
	}
	if len(p) > 2 {
		u.Side = onpath.Side(p[2])
	}
	if len(p) > 3 || p[0] == "" {
		return u, wrong("--uplink", "write DEVICE, DEVICE:ATTACH or DEVICE:ATTACH:SIDE", "%q is not an uplink", s)
	}
	if all := []onpath.Attach{onpath.AttachRouter, onpath.AttachBridge, onpath.AttachArm, onpath.AttachTap,
		onpath.AttachHost}; !slices.Contains(all, u.Attach) {
		return u, wrong("--uplink", "write router, bridge, arm, tap or host after the colon, or nothing for router",
			"%s: there is no attachment %q", s, u.Attach)
	}
	if u.Side != "" && u.Side != onpath.SideCore && u.Side != onpath.SideAccess {
		return u, wrong("--uplink", "write core or access", "%s: there is no side %q", s, u.Side)
	}
	return u, nil
}

// AddressTowards is the address that this machine would use to reach a server at
// host:port. It fails while there is no way to it, as before the network is up.
func AddressTowards(server string) (netip.Addr, error) {
	c, err := net.Dial("udp", server) // sends nothing
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	a, err := netip.ParseAddrPort(c.LocalAddr().String())
	return a.Addr().Unmap().WithZone(""), err
}

// OwnAddress guesses the address by which other machines reach this one: the one that
// it would use by its default route, else its first global unicast address, else
// loopback, which is enough for a machine that stands alone.
func OwnAddress() netip.Addr {
	for _, anywhere := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // RFC 5737, RFC 3849: nobody's
		if a, err := AddressTowards(anywhere); err == nil && a.IsGlobalUnicast() {
			return a
		}
	}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			return p.Addr().Unmap()
		}
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// OwnDevice is the device that has OwnAddress: that of the default route, as a rule.
func OwnDevice() (string, error) {
	own := OwnAddress()
	devices, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, d := range devices {
		addrs, _ := d.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == own && !own.IsLoopback() {
				return d.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no device of this machine has a default route")
}

// reachable is the address at which others reach a listener.
func reachable(listen string) string {
	host, port, _ := net.SplitHostPort(listen)
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		host = OwnAddress().String()
	}
	return net.JoinHostPort(host, port)
}

// pools allows one prefix of each IP version.
func pools(field string, list []onpath.Prefix) (es onpath.Errors) {
	seen := map[bool]bool{}
	for _, p := range list {
		if seen[p.Addr().Is4()] {
			es = append(es, wrong(field, "keep one of each", "there are two prefixes of one IP version"))
		}
		seen[p.Addr().Is4()] = true
	}
	return es
}

// hostPort checks HOST:PORT; of a listener, HOST is an address of this machine, a
// name of it, or nothing.
func hostPort(field, address string, listens bool) onpath.Errors {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return onpath.Errors{wrong(field, `write ADDRESS:PORT, such as "[::]:7443"`, "%q is not an address with a port", address)}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 && !listens {
		return onpath.Errors{wrong(field, "write a number from 1 to 65535 behind the colon", "%q is not a port", port)}
	}
	if _, err := netip.ParseAddr(host); err != nil && numeric.MatchString(host) {
		return onpath.Errors{wrong(field, "write an address such as 192.0.2.1 or [2001:db8::1]", "%q is not an IP address", host)}
	}
	return nil
}

// numeric are words that can only be meant as an IPv4 address.
var numeric = regexp.MustCompile(`^[0-9.]+$`)

func level(field, s string) onpath.Errors {
	switch s {
	case "debug", "info", "warn", "error":
		return nil
	}
	return onpath.Errors{wrong(field, "write debug, info, warn or error", "%q is not a level", s)}
}

func wrong(field, remedy, format string, args ...any) *onpath.Error {
	return &onpath.Error{Code: onpath.CodeInvalid, Field: field, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

func def(s *string, v string) {
	if *s == "" {
		*s = v
	}
}

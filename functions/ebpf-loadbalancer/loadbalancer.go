// Package loadbalancer is the load balancer that comes with onpath: consistent hashing
// as in Maglev, and health checks.
package loadbalancer

import (
	"context"
	_ "embed" // for the object
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/sdk"
)

//go:generate make -C ../../bpf functions

//go:embed loadbalancer.o
var object []byte

// Function is the load balancer.
var Function = sdk.Function{Name: "loadbalancer", Object: object, Compile: compile, Pointless: unserved, Accompany: accompany}

// Bounds of loadbalancer.bpf.c.
const (
	maxBackends   = 256 // in the configuration
	backendPlaces = 512 // with those whose flows are still on their way
	maxWeight     = 1000
	servicePorts  = 16
	tableRow      = 128
	tableRows     = 513
)

// balanceConfig is struct onpath_config of the load balancer.
type balanceConfig struct {
	Virtual4, Virtual6 [16]byte
	TCP, UDP           uint32
	By                 uint32
	Table4, Table6     uint32 // first rows of the tables in force
	PortCount          uint32
	Ports              [servicePorts][2]byte // big endian
}

// backendValue is struct backend.
type backendValue struct {
	Addr  [16]byte
	Port  [2]byte
	Alive uint8
	// Leaves is 1 of one that is named no more, or has weight 0: new flows choose another.
	Leaves uint8
	ID     uint32
}

type behindKey struct {
	Addr [16]byte
	Port [2]byte
	Pad  uint16
}

type rowValue [tableRow]uint16

// target is a backend that the configuration names.
type target struct {
	addr   netip.AddrPort // port 0: the one that was dialled
	weight uint32
}

// balance is what a load balancer is told.
type balance struct {
	config  balanceConfig
	targets []target
	named   bool // backends are, or are said to be none
	check   check
	drain   time.Duration
}

// check says how backends are probed.
type check struct {
	on              bool
	port            uint16 // 0: the backend's own, or the service's first
	every, timeout  time.Duration
	failures, rises int
}

const (
	defaultCheck = time.Second
	minCheck     = 100 * time.Millisecond
	defaultDrain = 30 * time.Second
)

func read(config sdk.Config) (b balance, err error) {
	protocol := uint32(1)
	b.check = check{on: true, every: defaultCheck, failures: 3, rises: 2}
	b.drain = defaultDrain
	err = config.Read("load balancer", sdk.Readers{
		"virtual":  b.virtual,
		"ports":    b.ports,
		"protocol": sdk.OneOf(&protocol, "", "tcp", "udp", "both"),
		"backends": b.backends,
		"by":       sdk.OneOf(&b.config.By, "flow", "source"),
		"check":    b.probe,
		"every":    sdk.Within(&b.check.every, minCheck, time.Hour, "write 100ms to 1h"),
		"drain":    sdk.Within(&b.drain, 0, 24*time.Hour, "write 0s to 24h"),
	})
	b.config.TCP, b.config.UDP = protocol&1, protocol>>1
	if err != nil {
		return b, err
	}
	b.check.timeout = min(b.check.every, time.Second)
	if err := b.complete(); err != nil {
		return b, err
	}
	if err := b.reachable(); err != nil {
		return b, err
	}
	if err := b.ported(); err != nil {
		return b, sdk.OnlyTogether(err)
	}
	return b, nil
}

// complete finds what is missing.
func (b *balance) complete() error {
	if b.config.Virtual4 == [16]byte{} && b.config.Virtual6 == [16]byte{} {
		return sdk.Missing("virtual", "write the address that clients dial, and name it in the Hosts' virtual")
	}
	if !b.named {
		return sdk.Missing("backends", `write one a line: 10.0.0.7, 10.0.0.8:8080 weight 2; or "" for none`)
	}
	return nil
}

// virtualOf is the virtual address of an address's IP version, zero if there is none.
func (b *balance) virtualOf(a netip.Addr) [16]byte {
	if a.Is4() {
		return b.config.Virtual4
	}
	return b.config.Virtual6
}

// reachable checks that each backend can be behind a virtual address: no packet
// changes its IP version.
func (b *balance) reachable() error {
	for _, t := range b.targets {
		a := t.addr.Addr()
		switch b.virtualOf(a) {
		case [16]byte{}:
			return fault("backends", "name a virtual address of the same IP version", "%s is %s, and no virtual address is", a, version(a))
		case a.As16():
			return sdk.About("backends", sdk.Invalid(a.String(), "a backend has another address than the virtual one"))
		}
	}
	return nil
}

// ported checks that the ports of backends, of the service and of checks fit
// together.
func (b *balance) ported() error {
	for _, t := range b.targets {
		switch {
		case t.addr.Port() != 0 && b.config.PortCount != 1:
			return fault("backends", "write the one port that is dialled as ports, or leave the backends' ports out",
				"%s names a port, and there are %d in ports", t.addr, b.config.PortCount)
		case b.check.on && b.probed(t.addr) == 0:
			return fault("backends", "write ports, check: PORT, or check: none", "%s cannot be checked: no port is known", t.addr)
		}
	}
	return nil
}

// unserved finds a virtual address that no backend can ever serve. A function that
// runs takes it and refuses its clients: what was taken before goes on.
func unserved(config sdk.Config) error {
	b, _ := read(config)
	if len(b.targets) == 0 {
		return nil
	}
	for _, virtual := range [][16]byte{b.config.Virtual4, b.config.Virtual6} {
		if virtual == [16]byte{} {
			continue
		}
		a := netip.AddrFrom16(virtual).Unmap()
		if slices.ContainsFunc(b.targets, func(t target) bool { return t.addr.Addr().Is4() == a.Is4() }) {
			continue
		}
		return fault("virtual", "name a backend of the same IP version, or leave the address out",
			"%s is %s, and no backend is", a, version(a))
	}
	return nil
}

// fault is an error about a value.
func fault(name, remedy, format string, args ...any) error {
	return &onpath.Error{Code: onpath.CodeInvalid, Field: name, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

func version(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// probed is the port at which a backend is probed.
func (b *balance) probed(t netip.AddrPort) uint16 {
	switch {
	case b.check.port != 0:
		return b.check.port
	case t.Port() != 0:
		return t.Port()
	case b.config.PortCount > 0:
		return binary.BigEndian.Uint16(b.config.Ports[0][:])
	}
	return 0
}

func (b *balance) virtual(value string) error {
	for _, w := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		a, err := netip.ParseAddr(w)
		if err != nil || a.Is4In6() || a.Zone() != "" {
			return sdk.Invalid(w, "write an IPv4 address, an IPv6 address, or one of each")
		}
		to := &b.config.Virtual6
		if a.Is4() {
			to = &b.config.Virtual4
		}
		if *to != [16]byte{} {
			return sdk.Invalid(w, "write one address of each IP version; another service is another function")
		}
		*to = a.As16()
	}
	return nil
}

func (b *balance) ports(value string) error {
	for _, w := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		n, err := strconv.ParseUint(w, 10, 16)
		if err != nil || n == 0 || b.config.PortCount == servicePorts {
			return sdk.Invalid(value, "write up to 16 ports: 80,443")
		}
		binary.BigEndian.PutUint16(b.config.Ports[b.config.PortCount][:], uint16(n))
		b.config.PortCount++
	}
	return nil
}

func (b *balance) probe(value string) error {
	value = strings.TrimSpace(value)
	switch value {
	case "none":
		b.check.on = false
		return nil
	case "tcp":
		return nil
	}
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n == 0 {
		return sdk.Invalid(value, "write tcp (a connection to the backend's port), a TCP port, or none")
	}
	b.check.port = uint16(n)
	return nil
}

// backends reads ADDRESS[:PORT] [weight N], one a line.
func (b *balance) backends(value string) error {
	b.named = true
	had := map[netip.AddrPort]bool{}
	for n, line := range strings.Split(value, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		t, err := parseTarget(words)
		if err == nil && had[t.addr] {
			err = onpath.Errorf(onpath.CodeInvalid, "%s stands there twice", words[0])
		}
		if err == nil && len(b.targets) == maxBackends {
			err = onpath.Errorf(onpath.CodeInvalid, "there are more than %d", maxBackends)
		}
		if err != nil {
			return sdk.InLine(n+1, err)
		}
		had[t.addr] = true
		b.targets = append(b.targets, t)
	}
	return nil
}

func parseTarget(words []string) (t target, err error) {
	t.weight = 1
	if a, err := netip.ParseAddr(words[0]); err == nil {
		t.addr = netip.AddrPortFrom(a, 0)
	} else if t.addr, err = netip.ParseAddrPort(words[0]); err != nil || t.addr.Port() == 0 {
		return t, sdk.Invalid(words[0], "write ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT")
	}
	if a := t.addr.Addr(); a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast() {
		return t, sdk.Invalid(words[0], "write the address of a machine")
	}
	switch {
	case len(words) == 1:
		return t, nil
	case len(words) == 3 && words[1] == "weight":
		n, err := strconv.ParseUint(words[2], 10, 32)
		if err != nil || n > maxWeight {
			return t, sdk.Invalid("weight "+words[2], "write 0 (no new flows) to 1000")
		}
		t.weight = uint32(n)
		return t, nil
	}
	return t, sdk.Invalid(strings.Join(words, " "), "write ADDRESS[:PORT] [weight N]")
}

// compile reads what the load balancer is told.
func compile(config sdk.Config) (sdk.Write, error) {
	b, err := read(config)
	if err != nil {
		return nil, err
	}
	return b.write, nil
}

// accompany checks the backends of an instance. Without checks, those that are named no more
// lose their flows some time later.
func accompany(config sdk.Config, in *sdk.Instance) func(context.Context) {
	b, err := read(config)
	switch {
	case err != nil:
		return nil
	case !b.check.on:
		return func(ctx context.Context) { b.drained(ctx, in.Tables, in.Say) }
	}
	return func(ctx context.Context) { b.watch(ctx, in.Tables, in.Say) }
}

package wireguard

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// setting is a configuration as wireguard-go reads it (https://www.wireguard.com/xplatform/).
func setting(c wgtypes.Config) []byte {
	var b bytes.Buffer
	key := func(k wgtypes.Key) string { return hex.EncodeToString(k[:]) }
	b.WriteString("set=1\n")
	if c.PrivateKey != nil {
		fmt.Fprintf(&b, "private_key=%s\n", key(*c.PrivateKey))
	}
	if c.ListenPort != nil {
		fmt.Fprintf(&b, "listen_port=%d\n", *c.ListenPort)
	}
	if c.ReplacePeers {
		b.WriteString("replace_peers=true\n")
	}
	for _, p := range c.Peers {
		fmt.Fprintf(&b, "public_key=%s\n", key(p.PublicKey))
		if p.Remove {
			b.WriteString("remove=true\n")
			continue
		}
		if p.UpdateOnly {
			b.WriteString("update_only=true\n")
		}
		if p.Endpoint != nil {
			fmt.Fprintf(&b, "endpoint=%s\n", p.Endpoint)
		}
		if p.PersistentKeepaliveInterval != nil {
			fmt.Fprintf(&b, "persistent_keepalive_interval=%d\n", int(p.PersistentKeepaliveInterval.Seconds()))
		}
		if p.ReplaceAllowedIPs {
			b.WriteString("replace_allowed_ips=true\n")
		}
		for _, a := range p.AllowedIPs {
			fmt.Fprintf(&b, "allowed_ip=%s\n", a.String())
		}
	}
	b.WriteString("\n")
	return b.Bytes()
}

// reply reads what wireguard-go says to one request.
func reply(r io.Reader) (*wgtypes.Device, error) {
	s := &wgtypes.Device{}
	var p *wgtypes.Peer
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "=")
		if !ok {
			continue
		}
		if name == "errno" {
			if value == "0" {
				return s, nil
			}
			return nil, fmt.Errorf("the process of WireGuard refuses: error %s", value)
		}
		if name == "public_key" {
			s.Peers = append(s.Peers, wgtypes.Peer{})
			p = &s.Peers[len(s.Peers)-1]
		}
		if err := read(s, p, name, value); err != nil {
			return nil, fmt.Errorf("the process of WireGuard says %s=%s: %w", name, value, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("the process of WireGuard: %w", err)
	}
	return nil, fmt.Errorf("the process of WireGuard: %w", io.ErrUnexpectedEOF)
}

// read takes one line up.
func read(s *wgtypes.Device, p *wgtypes.Peer, name, value string) (err error) {
	key := func(k *wgtypes.Key) error {
		b, err := hex.DecodeString(value)
		if err == nil {
			*k, err = wgtypes.NewKey(b)
		}
		return err
	}
	switch {
	case name == "private_key":
		if err = key(&s.PrivateKey); err == nil {
			s.PublicKey = s.PrivateKey.PublicKey()
		}
	case name == "listen_port":
		s.ListenPort, err = strconv.Atoi(value)
	case p == nil:
	case name == "public_key":
		err = key(&p.PublicKey)
	case name == "endpoint":
		var a netip.AddrPort
		if a, err = netip.ParseAddrPort(value); err == nil {
			p.Endpoint = net.UDPAddrFromAddrPort(a)
		}
	case name == "last_handshake_time_sec":
		var n int64
		if n, err = strconv.ParseInt(value, 10, 64); n > 0 {
			p.LastHandshakeTime = time.Unix(n, 0)
		}
	case name == "allowed_ip":
		var n *net.IPNet
		if _, n, err = net.ParseCIDR(value); err == nil {
			p.AllowedIPs = append(p.AllowedIPs, *n)
		}
	}
	return err
}

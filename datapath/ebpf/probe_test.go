package ebpf_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
)

// TestProbe: a node's data path says which of its vports take packets, with its
// driver closed, over either IP version; to those who know the pair's secret.
func TestProbe(t *testing.T) {
	t.Parallel()
	for _, version := range []struct{ name, gw, n2 string }{{"IPv4", "10.255.0.1", "10.255.0.2"}, {"IPv6", "fd00:255::1", "fd00:255::2"}} {
		t.Run(version.name, func(t *testing.T) {
			c := newTestbed(t)
			addrs := map[string]netip.Addr{"gw": netip.MustParseAddr(version.gw), "n2": netip.MustParseAddr(version.n2)}
			if version.name == "IPv6" {
				for name, a := range addrs {
					c.in(c.nodes[name].ns, func() error {
						l, err := netlink.LinkByName("under0")
						if err != nil {
							return err
						}
						addr, err := netlink.ParseAddr(a.String() + "/64")
						if err != nil {
							return err
						}
						return netlink.AddrAdd(l, addr)
					})
					c.nodes[name].underlay = a
				}
			}
			c.routed("n2", 17)
			c.routed("n2", 18)
			c.apply(toServers(), func(cfg *onpath.DatapathConfig) {
				for i := range cfg.Vports {
					if v := &cfg.Vports[i]; v.ID == 18 && v.Kind == onpath.VportInstance {
						v.State = onpath.VportClosed
					}
				}
			}, element(17, 17, 18, 18))
			c.must(c.nodes["n2"].dp.Close())
			talk, err := c.nodes["gw"].dp.ProbePeers(addrs["gw"], netip.Addr{})
			c.must(err)
			defer talk.Close()
			peer := onpath.Peer{Node: "n2", Address: addrs["n2"], Port: onpath.DefaultTunnelPort, Secret: 77}
			many := []onpath.VportID{17, 18, 99}
			for id := onpath.VportID(1000); len(many) < onpath.MaxAsked; id++ {
				many = append(many, id)
			}
			for i, list := range [][]onpath.VportID{{17, 18, 99}, nil, many} {
				n := uint64(i + 7)
				c.must(talk.Ask(onpath.PeerQuestion{Peer: peer, Number: n, Vports: list}))
				got, err := talk.Replies(5 * time.Second)
				c.must(err)
				if len(got) != 1 || got[0].Number != n || got[0].Peer != addrs["n2"] || len(got[0].States) != len(list) {
					t.Fatalf("question %d got %+v", n, got)
				}
				for _, v := range list {
					want := onpath.VportClosed
					if v == 17 {
						want = onpath.VportUp
					}
					if got[0].States[v] != want {
						t.Errorf("vport %d is %s, want %s", v, got[0].States[v], want)
					}
				}
			}
			peer.Secret = 78
			c.must(talk.Ask(onpath.PeerQuestion{Peer: peer, Number: 99}))
			if got, _ := talk.Replies(200 * time.Millisecond); len(got) > 0 {
				t.Errorf("a question without the pair's secret got %+v", got)
			}
			if err := talk.Ask(onpath.PeerQuestion{Peer: peer, Vports: append(many, 1)}); onpath.CodeOf(err) != onpath.CodeInvalid {
				t.Errorf("a question about too many vports: %v", err)
			}
			c.nodes["n2"].dp = c.open(c.nodes["n2"])
		})
	}
}

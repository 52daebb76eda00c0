package ebpf_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/impair"
)

// TestCutTunnels: what is lost on purpose where tunnels come in is lost before the data
// path takes it, and a change of the configuration does not end that.
func TestCutTunnels(t *testing.T) {
	t.Parallel()
	for _, noTCX := range []bool{false, true} {
		t.Run(fmt.Sprintf("noTCX=%v", noTCX), func(t *testing.T) {
			c := newTestbedWith(t, testbedOptions{noTCX: noTCX})
			c.routed("n2", 17)
			c.chainOf(toServers(), element(17, 17))
			c.in(c.server, func() error { // nobody is to answer
				sink, err := net.ListenPacket("udp", "10.9.0.2:9")
				if err == nil {
					t.Cleanup(func() { sink.Close() })
				}
				return err
			})
			send := c.udp(c.client, "10.1.0.2:5000", "10.9.0.2:9")
			came := func(when string, want uint64) {
				t.Helper()
				send()
				for until := time.Now().Add(time.Minute); c.out("n2", 17) < want && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
				}
				time.Sleep(50 * time.Millisecond)
				if n := c.out("n2", 17); n != want {
					t.Errorf("%s %d packets have come to the instance, must be %d", when, n, want)
				}
			}
			came("at first", 1)
			n2 := c.nodes["n2"].ns
			c.in(n2, func() error {
				return impair.Cut("under0", impair.Received, impair.Datagrams{To: onpath.DefaultTunnelPort}, time.Minute)
			})
			came("with the link cut", 1)
			c.apply(toServers(), func(cfg *onpath.DatapathConfig) { cfg.Paths[0].MTU = testbedMTU - 100 }, element(17, 17))
			came("with the link cut, after a change", 1)
			c.in(n2, func() error { return impair.Clear("under0") })
			came("when that is over", 2)
		})
	}
}

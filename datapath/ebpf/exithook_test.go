package ebpf_test

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestCloseAtExit: the vports of a program that is killed are closed by the kernel,
// those of one that runs or whose watch has ended are not. Until the watch ends they
// stay so; then the next Apply of the same configuration opens them again.
func TestCloseAtExit(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	for id := onpath.VportID(17); id <= 19; id++ {
		c.routed("n2", id)
	}
	apply := func() { c.apply(toServers(), nil, element(17, 17, 18, 18, 19, 19)) }
	apply()
	talk, err := c.nodes["gw"].dp.ProbePeers(c.nodes["gw"].underlay, netip.Addr{})
	c.must(err)
	defer talk.Close()
	number := uint64(0)
	states := func() map[onpath.VportID]onpath.VportState {
		t.Helper()
		number++
		peer := onpath.Peer{Node: "n2", Address: c.nodes["n2"].underlay, Port: onpath.DefaultTunnelPort, Secret: 77}
		c.must(talk.Ask(onpath.PeerQuestion{Peer: peer, Number: number, Vports: []onpath.VportID{17, 18, 19}}))
		for begin := time.Now(); time.Since(begin) < time.Minute; {
			answers, err := talk.Replies(time.Second)
			c.must(err)
			for _, a := range answers {
				if a.Number == number {
					return a.States
				}
			}
		}
		t.Fatal("no answer")
		return nil
	}
	dp := c.nodes["n2"].dp
	start := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		c.must(cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	dies, lives, ignored := start(), start(), start()
	var forget [3]func()
	for i, cmd := range []*exec.Cmd{dies, lives, ignored} {
		forget[i], err = dp.CloseAtExit(cmd.Process.Pid, []onpath.VportID{onpath.VportID(17 + i)})
		if onpath.CodeOf(err) == onpath.CodeUnsupported {
			if _, noTypes := os.Stat("/sys/kernel/btf/vmlinux"); noTypes != nil {
				t.Skip("needs a kernel with type information (BTF): /sys/kernel/btf/vmlinux is not there")
			}
		}
		c.must(err)
	}
	forget[2]()
	for _, cmd := range []*exec.Cmd{dies, ignored} {
		c.must(cmd.Process.Kill())
		_ = cmd.Wait()
	}
	if s := states(); s[17] != onpath.VportClosed || s[18] != onpath.VportUp || s[19] != onpath.VportUp {
		t.Fatalf("after the end of the programs of 17 and, unwatched, of 19: %v", s)
	}
	apply()
	if s := states(); s[17] != onpath.VportClosed {
		t.Errorf("Apply opened the vport of a program whose end was not known yet: %v", s)
	}
	forget[0]()
	apply()
	if s := states(); s[17] != onpath.VportUp {
		t.Errorf("the configuration does not open what the kernel closed: %v", s)
	}
	c.must(lives.Process.Kill())
	_ = lives.Wait()
	forget[1]()
	if s := states(); s[17] != onpath.VportUp || s[18] != onpath.VportClosed {
		t.Errorf("after the end of the program of 18: %v", s)
	}
	apply()
	if s := states(); s[18] != onpath.VportUp {
		t.Errorf("the configuration does not open what the kernel closed before the watch ended: %v", s)
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		if forget, err := dp.CloseAtExit(pid, []onpath.VportID{17}); err == nil {
			forget()
			t.Errorf("takes process %d", pid)
		}
	}
	if _, err := dp.CloseAtExit(1, make([]onpath.VportID, 3)); onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Errorf("takes three vports: %v", err)
	}
}

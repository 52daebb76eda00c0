package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/ociimage"
	"github.com/onpath/onpath/internal/netnsrun"
)

// forgedMark stands in all packets that the stranger forges.
const forgedMark = "forged:"

// contained has the stranger's container attack the rest, while the client and the
// neighbour speak through the same gateway.
func (d *trustRun) contained(ctx context.Context) error {
	if err := ociimage.WriteProgram(d.file("hostile"), d.Testbed.Bin()); err != nil {
		return err
	}
	if err := d.Testbed.Start("echo", "neighbour", d.Testbed.Bin(), "demo", "echo", "10.9.0.3:9000"); err != nil {
		return err
	}
	if err := d.Testbed.Apply(ctx, d.file("hostile.yaml")); err != nil {
		return err
	}
	var in onpath.Instance
	err := d.Testbed.WaitFor(ctx, "the stranger's container is ready", 60*time.Second, func() (bool, error) {
		list, err := d.Testbed.Instances(ctx)
		for _, i := range list {
			if i.Spec.Deployment == "hostile" && i.Status.State == onpath.InstanceReady {
				in = i
			}
		}
		return in.Metadata.Name != "", err
	})
	if err != nil {
		return err
	}
	d.Say("a container of the stranger's attacks; the client and the neighbour exchange 500 datagrams a second meanwhile")
	var hear []func() map[string]int
	for host, devices := range map[string][]string{"gw1": {"access", "core", "underlay"}, "client": {"eth0"}, "neighbour": {"eth0"}} {
		stop, err := Hear(d.Testbed.Lab.NetNS(host), forgedMark, devices...)
		if err != nil {
			return err
		}
		hear = append(hear, stop)
	}
	streaming, stop := context.WithCancel(ctx)
	type stream struct {
		NumbersResult
		err error
	}
	done := make(chan stream, 1)
	go func() {
		var s stream
		s.err = netnsrun.Do(d.Testbed.Lab.NetNS("client"), func() (err error) {
			s.NumbersResult, err = RunNumbers(streaming, NumbersSpec{To: "10.9.0.3:9000", Rate: 500, For: time.Minute})
			return err
		})
		done <- s
	}()
	r, dropped, err := d.attack(ctx, in)
	stop()
	s := <-done
	heard := 0
	for _, stop := range hear {
		for _, n := range stop() {
			heard += n
		}
	}
	if err != nil {
		return err
	}
	d.figures.add(len(r.Through) == 0 && r.Tried > 0, "a stranger's container does not get out", "%d of %d ways refused%s",
		r.Tried-len(r.Through), r.Tried, strings.Join(append([]string{""}, r.Through...), ", not "))
	d.figures.add(r.Processes > 0 && r.Stopped != "", "its fork bomb ends", "at %d processes: %s", r.Processes, r.Stopped)
	d.figures.add(heard == 0 && r.Sent > 0 && len(dropped) > 0, "its forged packets reach nobody", "%d of %d were heard; dropped: %s",
		heard, r.Sent, strings.Join(dropped, ", "))
	d.figures.add(s.err == nil && s.Lost() == 0 && s.Sent > 0, "and its neighbours lose nothing", "%d of %d datagrams", s.Lost(), s.Sent)
	return ctx.Err()
}

// attack tries everything at once, and says what of it was dropped for which reasons.
func (d *trustRun) attack(ctx context.Context, in onpath.Instance) (r HostileResult, dropped []string, err error) {
	v := in.Spec.Vport
	own, err := net.ParseMAC(onpath.InstanceMAC(v))
	if err != nil {
		return r, nil, err
	}
	gateway, err := net.ParseMAC(onpath.HostMAC(v))
	if err != nil {
		return r, nil, err
	}
	at := netip.MustParseAddrPort
	client, neighbour, node := at("10.1.0.11:9001"), at("10.9.0.3:9000"), at("10.255.0.1:4797")
	spec := HostileSpec{Escape: true, Fork: true, Each: 50,
		Reach: []string{"10.255.0.10:7443", "10.255.0.1:22", "10.9.0.1:22", "10.9.0.3:80", "169.254.169.254:80"},
		Frames: [][]byte{
			forged(gateway, own, neighbour, client, forgedMark+"neighbour "),
			forged(gateway, own, client, neighbour, forgedMark+"client "),
			forged(gateway, own, node, client, forgedMark+"node "),
			forged(gateway, own, neighbour, node, forgedMark+"tunnel "),
			claimedARP(own, neighbour.Addr(), forgedMark+"ARP "),
		}}
	before, err := d.dropped(ctx, in.Spec)
	if err != nil {
		return r, nil, err
	}
	out, err := d.Testbed.Onpath(ctx, "exec", "stranger/"+in.Metadata.Name, "--", ociimage.Program, "demo", "hostile", asJSON(spec))
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		return r, nil, err
	}
	after, err := d.dropped(ctx, in.Spec)
	for _, why := range onpath.DropReasons {
		if n := after[why] - before[why]; n > 0 {
			dropped = append(dropped, fmt.Sprintf("%d %s", n, why))
		}
	}
	return r, dropped, err
}

// dropped is how much of what an instance sent came to nothing, by reason.
func (d *trustRun) dropped(ctx context.Context, in onpath.InstanceSpec) (map[onpath.DropReason]uint64, error) {
	c := client.Unix(strings.TrimPrefix(d.Testbed.Socket(), "unix://"))
	defer c.Close()
	all, err := c.Counters(ctx, in.Node)
	if err != nil {
		return nil, err
	}
	return all.Nodes[in.Node].Vports[in.Vport].Dropped, nil
}

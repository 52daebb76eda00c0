package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab/relay"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// chooseEmulation settles who emulates shaped links.
func (l *Lab) chooseEmulation(_ context.Context, wanted string) error {
	switch wanted {
	case EmulateRelay:
		l.Emulation = EmulateRelay
	case EmulateAuto, EmulateNetem:
		lacking := ProbeNetem()
		if lacking != nil && wanted == EmulateNetem {
			return lacking
		}
		l.Emulation = EmulateNetem
		if lacking != nil {
			l.Emulation = EmulateRelay
			l.log.Debug("no netem", "why", lacking)
		}
	default:
		return onpath.Errorf(onpath.CodeInvalid, "%q is not a kind of emulation (write netem or relay)", wanted)
	}
	return l.dir.save(l.state)
}

// ProbeNetem tries whether this kernel can shape links: it builds one in a
// namespace that vanishes with the attempt. nil means it can; CodeUnsupported
// says what is lacking.
func ProbeNetem() error {
	done := make(chan error)
	go func() {
		// A thread of its own, which ends with the goroutine: it is never
		// unlocked, and its namespace goes with it.
		done <- probeNetem()
	}()
	return <-done
}

// startEmulation brings shaped links to life.
func (l *Lab) startEmulation(ctx context.Context) error {
	shaped := l.shaped()
	if len(shaped) == 0 {
		return nil
	}
	if l.Emulation == EmulateRelay {
		return l.startRelay(ctx, shaped)
	}
	w, err := l.inside(wire)
	if err != nil {
		return err
	}
	defer w.close()
	for _, i := range shaped {
		link := l.state.Topology.Links[i]
		if err := errors.Join(
			shape(w, middle(i, "a"), middle(i, "b"), link.There, link.MTU),
			shape(w, middle(i, "b"), middle(i, "a"), link.Back, link.MTU)); err != nil {
			return fmt.Errorf("link %s: %w", link.Name(), err)
		}
	}
	return nil
}

// shaped are the indices of the links that need emulation.
func (l *Lab) shaped() (out []int) {
	for i, link := range l.state.Topology.Links {
		if link.Shaped() {
			out = append(out, i)
		}
	}
	return out
}

// shape redirects what arrives at device from to device to, where netem holds
// it.
func shape(w *inside, from, to string, s Shape, mtu int) error {
	in, err := w.LinkByName(from)
	if err != nil {
		return err
	}
	out, err := w.LinkByName(to)
	if err != nil {
		return err
	}
	if err := w.QdiscAdd(netemFor(out.Attrs().Index, s, mtu)); err != nil {
		return fmt.Errorf("netem on %s: %w", to, err)
	}
	ingress := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: in.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := w.QdiscAdd(ingress); err != nil {
		return fmt.Errorf("clsact on %s: %w", from, err)
	}
	redirect := netlink.NewMirredAction(out.Attrs().Index)
	filter := &netlink.MatchAll{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: in.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL},
		Actions:     []netlink.Action{redirect},
	}
	if err := w.FilterAdd(filter); err != nil {
		return fmt.Errorf("redirect from %s: %w", from, err)
	}
	return nil
}

// netemFor translates a shape. netem counts its queue in packets and counts
// those on the way too.
func netemFor(index int, s Shape, mtu int) *netlink.Netem {
	size := float64(mtu + 14)
	limit := 100_000.0
	if s.Rate != 0 {
		onTheWay := float64(s.Rate) / 8 * time.Duration(s.Delay+s.Jitter).Seconds()
		limit = math.Ceil((onTheWay + float64(s.Queue)) / size)
	}
	return netlink.NewNetem(
		netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		netlink.NetemQdiscAttrs{
			Latency: uint32(time.Duration(s.Delay).Microseconds()),
			Jitter:  uint32(time.Duration(s.Jitter).Microseconds()),
			Loss:    float32(s.Loss * 100),
			Limit:   uint32(max(limit, 100)),
			Rate64:  uint64(s.Rate) / 8, // bytes per second
		})
}

// relayOrder tells the relay's process what to do.
type relayOrder struct {
	NetNS    string       `json:"netns"`
	Counters string       `json:"counters"`
	Links    []relay.Link `json:"links"`
}

// startRelay starts the process that carries frames, and waits until it does.
func (l *Lab) startRelay(ctx context.Context, shaped []int) error {
	order := relayOrder{NetNS: l.dir.net(wire), Counters: l.dir.counters()}
	for _, i := range shaped {
		link := l.state.Topology.Links[i]
		order.Links = append(order.Links, relay.Link{
			Name: link.Name(), A: middle(i, "a"), B: middle(i, "b"),
			There: relayShape(link.There, link.Seed, 2*i), Back: relayShape(link.Back, link.Seed, 2*i+1),
		})
	}
	b, err := json.MarshalIndent(order, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.dir.linksFile(), b, 0o600); err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Args = []string{nameLinks, l.dir.linksFile()}
	cmd.Dir = "/"
	ready, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p := &Process{Name: "links", Run: cmd.Args}
	if err := l.start(cmd, p); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { ready.Close() })
	defer stop()
	defer ready.Close()
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		said, _ := os.ReadFile(p.Log)
		return fmt.Errorf("the process that carries frames ended: %s", strings.TrimSpace(string(said)))
	}
	return nil
}

func relayShape(s Shape, seed uint64, direction int) relay.Shape {
	return relay.Shape{
		Rate: int64(s.Rate), Delay: time.Duration(s.Delay), Jitter: time.Duration(s.Jitter),
		Loss: s.Loss, Queue: int64(s.Queue), Seed: seed<<16 + uint64(direction),
	}
}

// LinkMain is the process that carries the frames of shaped links on kernels
// without netem. args is the file with its orders. It runs until it gets
// SIGTERM or SIGINT. It needs no dispatch by the program: init calls it in a
// process that the lab started.
func LinkMain(args []string) error {
	if err := waitAtBarrier(); err != nil {
		return err
	}
	var order relayOrder
	if len(args) != 1 {
		return errors.New("helper called by hand")
	}
	b, err := os.ReadFile(args[0])
	if err == nil {
		err = json.Unmarshal(b, &order)
	}
	if err != nil {
		return fmt.Errorf("links: orders: %w", err)
	}
	if err := setns(order.NetNS, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("links: %w", err)
	}
	counters, err := relay.MapCounters(order.Counters, len(order.Links))
	if err != nil {
		return err
	}
	r, err := relay.Open(order.Links, counters)
	if err != nil {
		return err
	}
	defer r.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return fmt.Errorf("links: say ready: %w", err)
	}
	return r.Run(ctx)
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/bench/traffic"
	"github.com/onpath/onpath/datapath/ebpf"
)

// line is a source, a router and a sink in a row, three namespaces with a veth
// pair between each two. What stands in the router's place is what is measured.
// Source, router and sink work on one CPU.
type line struct {
	*testnet.Network
	source, router, sink string // namespaces
	forth, back          *traffic.Source
	far, near            *traffic.Sink // where forth's frames end, and back's
	cpu                  int
	datapath             *ebpf.Driver // onpath's, if that is what forwards
	// processes of the router, which stand still while others are measured.
	processes []int
	// fault says how what the router needs is doing where nothing comes through;
	// nil: it needs nothing.
	fault func() error
}

// keep has a process of the router run only while the router is measured.
func (l *line) keep(pid int) {
	l.processes = append(l.processes, pid)
	l.let(unix.SIGSTOP)
}

// let stops the router's processes, or has them go on.
func (l *line) let(s unix.Signal) {
	for _, pid := range l.processes {
		_ = unix.Kill(pid, s) // one that has ended forwards nothing, which is seen
	}
}

// Devices of a line, and who is where. The router has a subnet with the source
// and one with the sink, and routes for what is behind them.
const (
	devSource, devIn, devOut, devSink = "gen0", "in0", "out0", "sink0"
)

var (
	macSource = mac("02:62:00:00:00:01")
	macIn     = mac("02:62:00:00:00:02")
	macOut    = mac("02:62:00:00:00:03")
	macSink   = mac("02:62:00:00:00:04")

	addrSource = netip.MustParseAddr("10.1.0.2")
	addrIn     = netip.MustParsePrefix("10.1.0.1/24")
	addrOut    = netip.MustParsePrefix("10.9.0.1/24")
	addrSink   = netip.MustParseAddr("10.9.0.2")

	// Flows come from here, and all go to one address.
	netClients = netip.MustParsePrefix("10.16.0.0/12")
	netServers = netip.MustParsePrefix("10.64.0.0/16")
)

func mac(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// flowsOf are n flows through a line.
func flowsOf(n int) traffic.Flows {
	return traffic.Flows{Count: n, From: netClients.Addr(), To: netip.MustParseAddr("10.64.0.1"), Port: 1024, ToPort: 9}
}

// newLine makes the namespaces; the router forwards nothing yet.
func (r *Run) newLine(name string) (l *line, err error) {
	b, err := r.testnet(name)
	if err != nil {
		return nil, err
	}
	l = &line{Network: b, cpu: r.cpu}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
			l = nil
		}
	}()
	for ns, name := range map[*string]string{&l.source: "source", &l.router: "router", &l.sink: "sink"} {
		if *ns, err = l.Namespace(name); err != nil {
			return l, err
		}
	}
	pairs := [][2]testnet.End{
		{{NS: l.router, Dev: devIn, MAC: macIn, Addrs: []netip.Prefix{addrIn}, GRO: true},
			{NS: l.source, Dev: devSource, MAC: macSource, GRO: true}},
		{{NS: l.router, Dev: devOut, MAC: macOut, Addrs: []netip.Prefix{addrOut}, GRO: true},
			{NS: l.sink, Dev: devSink, MAC: macSink, GRO: true}},
	}
	for _, p := range pairs {
		if err := testnet.Pair(p[0], p[1]); err != nil {
			return l, err
		}
	}
	return l, errors.Join(l.routes(), l.ends())
}

func (l *line) routes() error {
	return errors.Join(
		testnet.Neighbour(l.router, devIn, addrSource, macSource), testnet.Neighbour(l.router, devOut, addrSink, macSink),
		testnet.Route(l.router, devIn, netClients, addrSource), testnet.Route(l.router, devOut, netServers, addrSink),
	)
}

func (l *line) ends() (err error) {
	if l.far, err = traffic.NewSink(l.sink, devSink); err != nil {
		return err
	}
	l.After(l.far.Close)
	if l.near, err = traffic.NewSink(l.source, devSource); err != nil {
		return err
	}
	l.After(l.near.Close)
	if l.forth, err = traffic.NewSource(l.source, devSource, macSource, macIn, l.cpu); err != nil {
		return err
	}
	l.After(l.forth.Close)
	if l.back, err = traffic.NewSource(l.sink, devSink, macSink, macOut, l.cpu); err != nil {
		return err
	}
	l.After(l.back.Close)
	return nil
}

// establish sends one packet of each flow, one answer, and another packet, so that
// whoever keeps state of flows has it, and keeps it where it does for flows in use.
func (l *line) establish(ctx context.Context, flows traffic.Flows) error {
	l.let(unix.SIGCONT)
	defer l.let(unix.SIGSTOP)
	job := traffic.Job{Flows: flows, Order: traffic.Sequential, Frames: uint64(flows.Count)}
	for _, dir := range []struct {
		from *traffic.Source
		to   *traffic.Sink
		back bool
	}{{l.forth, l.far, false}, {l.back, l.near, true}, {l.forth, l.far, false}} {
		if err := dir.to.Reset(); err != nil {
			return err
		}
		job.Back = dir.back
		if _, err := dir.from.Run(ctx, job); err != nil {
			return err
		}
	}
	return nil
}

// establishMany does so for no more flows at once than onpath's tables of flows that begin
// have room for.
func (l *line) establishMany(ctx context.Context, flows traffic.Flows) error {
	const most = 1 << 14
	for end := flows.First + flows.Count; flows.First < end; flows.First += flows.Count {
		flows.Count = min(most, end-flows.First)
		if err := l.establish(ctx, flows); err != nil {
			return err
		}
	}
	return nil
}

// trial is one measurement of a line.
type trial struct {
	sent, received uint64
	offered        float64       // packets/s
	busy           float64       // share of its time that the CPU worked
	processes      time.Duration // of the CPU, that the router's processes took
}

// rate is what arrived, packets/s.
func (t trial) rate() float64 { return t.offered * (1 - t.loss()) }

// cpu is the CPU time of a packet that arrived, source and sink included, ns.
func (t trial) cpu() float64 { return t.busy * 1e9 / t.rate() }

// process is the CPU time of a packet that arrived in the router's processes, ns.
func (t trial) process() float64 { return float64(t.processes) / float64(max(t.received, 1)) }

func (t trial) loss() float64 {
	if t.sent == 0 || t.received >= t.sent {
		return 0
	}
	return float64(t.sent-t.received) / float64(t.sent)
}

// settle is how long the last packets of a trial may take.
const settle = 50 * time.Millisecond

// try sends for a while and counts what arrives.
func (l *line) try(ctx context.Context, job traffic.Job) (t trial, err error) {
	l.let(unix.SIGCONT)
	defer l.let(unix.SIGSTOP)
	if err := l.far.Reset(); err != nil {
		return t, err
	}
	before := processorTime(l.processes)
	defer func() { t.processes = processorTime(l.processes) - before }()
	var sent traffic.Sent
	worked, err := busy(l.cpu, func() error {
		sent, err = l.forth.Run(ctx, job)
		return err
	})
	if err != nil {
		return t, err
	}
	t.sent, t.offered = sent.Before+sent.Frames, sent.Rate
	t.busy = min(1, worked.Seconds()/sent.Time.Seconds())
	for until := time.Now().Add(settle); ; time.Sleep(time.Millisecond) {
		if t.received, err = l.far.Packets(); err != nil || t.received >= t.sent || time.Now().After(until) {
			return t, err
		}
	}
}

// lossTolerance is the loss of a trial that counts as loss-free. RFC 2544 asks
// for none; with ten million packets a trial that would measure the clock tick
// that hit one of them.
const lossTolerance = 1e-5

// The search ends when the bounds are as close as this.
const searchPrecision = 0.02

// maximum searches the highest rate at which nothing is lost (RFC 2544, 26.1).
// Who forwards within the kernel is offered all the CPU can carry, and loses
// nothing; for others the rate is halved between what was lost and what was not.
func (l *line) maximum(ctx context.Context, job traffic.Job) (trial, error) {
	job.Rate = 0
	best, err := l.try(ctx, job)
	if err != nil || best.loss() <= lossTolerance {
		return best, err
	}
	low, high := 0.0, best.rate()
	if high == 0 { // offered so many, a program in user space may not get the CPU at all
		high = best.offered
	}
	sent := best.sent
	best = trial{}
	for job.Rate = high; ; job.Rate = (low + high) / 2 {
		if job.Order == traffic.Sequential { // flows that nobody has seen
			job.Flows.First += int(sent)
		}
		t, err := l.try(ctx, job)
		if err != nil {
			return best, err
		}
		sent = t.sent
		if t.loss() <= lossTolerance && t.received > 0 {
			// The source may send more slowly than it is asked to, where it shares a CPU.
			if low = job.Rate; t.rate() > best.rate() {
				best = t
			}
		} else {
			high = job.Rate
		}
		if high-low <= searchPrecision*high {
			return best, nil
		}
		if high < 100 {
			err := fmt.Errorf("packets are lost even at %.0f a second: of %d, %d came", high, t.sent, t.received)
			if l.fault != nil {
				err = errors.Join(err, l.fault())
			}
			return best, err
		}
	}
}

package demo

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/lab"
)

func accelerateDemonstration() Demonstration {
	return Demonstration{
		Name:  "accelerate",
		Short: "Shorten transfers over 180 ms by relays, chosen by size",
		Long: `Emulate a client in Ireland, an origin in California and four machines between
them, run a real server and real nodes, and time transfers of 10, 100 and 500 kB:
direct, by one relay, by three, and by those that onpath chooses from its own
measurements (MOSTO, Figure 5). The model's times stand beside the measured ones.
Then a first SYN wakes a sleeping container, and a first datagram another one.`,
		Seconds: 110, Runs: 5,
		Needs: append([]string{"perl"}, containers...),
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &accelerateRun{Run: r}
			if err := d.setUp(ctx); err != nil {
				return nil, err
			}
			if err := d.measure(ctx); err != nil {
				return nil, err
			}
			if err := d.wake(ctx); err != nil {
				return nil, fmt.Errorf("sleeping containers: %w", err)
			}
			d.report.check()
			d.report.checkWoken()
			return &d.report, nil
		},
	}
}

const acceleratedOrigin = "10.2.4.2"

// transfers are the sizes, and the origin's port for each: who asks for a size names it by
// its port (MOSTO §VI, "Transfer size discovery").
var transfers = []struct {
	port  uint16
	bytes int64
}{{8010, 10_000}, {8100, 100_000}, {8500, 500_000}}

type accelerateRun struct {
	*Run
	report accelerateReport
}

type accelerateReport struct {
	Ways []acceleratedWay `json:"ways"`
	// Measured are the round trips that the nodes told.
	Measured map[string][]onpath.Distance `json:"measured"`
	Woken    []woken                      `json:"woken"`
	ByHand   time.Duration                `json:"byHand"` // the sleepers' program, until it listens
	Checks   `json:"checks"`
}

// acceleratedWay is one set of relays.
type acceleratedWay struct {
	Name   string          `json:"name"`
	Cases  []transferTimes `json:"cases"` // by size
	Relays []string        `json:"relays,omitempty"`
}

type transferTimes struct {
	Bytes  int64         `json:"bytes"`
	Median time.Duration `json:"median"`
	Low    time.Duration `json:"low"` // quartiles
	High   time.Duration `json:"high"`
	Model  time.Duration `json:"model"`
	Path   []string      `json:"path,omitempty"`
	direct time.Duration // by the model
}

func (d *accelerateRun) setUp(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/accelerate.yaml"))
	if err != nil {
		return err
	}
	spec := TestbedSpec{Topology: topology, HostImage: true, Server: TestbedNode{Host: "ireland", Address: "10.255.0.1"}}
	for i, n := range []string{"ireland", "azores", "virginia", "kansas"} {
		spec.Nodes = append(spec.Nodes, TestbedNode{Name: n, Host: n, Address: fmt.Sprintf("10.255.0.%d", i+1), Cloudlet: n})
	}
	if err := d.SetUp(ctx, spec); err != nil {
		return err
	}
	if err := d.uplinks(ctx, "ireland", "clients", "wan"); err != nil {
		return err
	}
	if err := d.uplinks(ctx, "virginia", "east", "west"); err != nil {
		return err
	}
	d.Say("origin in California, 180 ms from the client in Ireland")
	args := []string{"demo", "send"}
	for _, t := range transfers {
		args = append(args, net.JoinHostPort(acceleratedOrigin, strconv.Itoa(int(t.port))))
	}
	return d.Testbed.Start("origin-server", "origin", append([]string{d.Testbed.Bin()}, args...)...)
}

// uplinks has a node take up the devices that carry transit traffic.
func (d *accelerateRun) uplinks(ctx context.Context, node, access, core string) error {
	var n onpath.Node
	if err := d.Testbed.Get(ctx, &n, "node", node); err != nil {
		return err
	}
	text := fmt.Sprintf(`apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: %s}
spec:
  cloudlet: %s
  underlay: {address: %s}
  uplinks:
  - {name: access, device: %s, attach: router, side: access}
  - {name: core, device: %s, attach: router, side: core}
`, node, node, n.Spec.Underlay.Address, access, core)
	file := filepath.Join(d.Dir, node+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	return d.Testbed.Apply(ctx, file)
}

func (d *accelerateRun) measure(ctx context.Context) error {
	direct, err := d.times(ctx, "direct", nil)
	if err != nil {
		return err
	}
	d.report.Ways = append(d.report.Ways, direct)
	for _, w := range []struct {
		name    string
		between []string
	}{
		{"one relay", []string{"virginia"}},
		{"three relays", []string{"ireland", "azores", "kansas"}},
		{"chosen by onpath", []string{"ireland", "azores", "virginia", "kansas"}},
	} {
		way, err := d.accelerated(ctx, w.name, w.between)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		d.report.Ways = append(d.report.Ways, way)
	}
	for i, c := range d.report.Ways[len(d.report.Ways)-1].Cases {
		d.report.Ways[0].Cases[i].Model = c.direct
	}
	return nil
}

// accelerated measures with relays on some nodes.
func (d *accelerateRun) accelerated(ctx context.Context, name string, between []string) (way acceleratedWay, err error) {
	args := []string{"accelerate"}
	for _, t := range transfers {
		args = append(args, net.JoinHostPort(acceleratedOrigin, strconv.Itoa(int(t.port))))
	}
	args = append(args, "--between", strings.Join(between, ","), "--ingress", between[0], "--name", "california", "--congestion", "cubic")
	for _, t := range transfers {
		args = append(args, "--size", strconv.FormatInt(t.bytes, 10))
	}
	d.Say("onpath %s", strings.Join(args, " "))
	if _, err := d.Testbed.Onpath(ctx, args...); err != nil {
		return way, err
	}
	var a onpath.Accelerator
	// Values of all pairs come in by and by; the last choice counts.
	if err := d.Testbed.WaitFor(ctx, "all pairs are measured", time.Minute, func() (bool, error) {
		if err := d.Testbed.Get(ctx, &a, "accelerator", "california"); err != nil {
			return false, err
		}
		return d.allMeasured(ctx, between)
	}); err != nil {
		return way, err
	}
	if err := d.Testbed.Get(ctx, &a, "accelerator", "california"); err != nil {
		return way, err
	}
	if way, err = d.times(ctx, name, &a); err != nil {
		return way, err
	}
	way.Relays = between
	if _, err := d.Testbed.Onpath(ctx, "delete", "accelerator", "california"); err != nil {
		return way, err
	}
	// What is measured next must not be relayed.
	if err := d.Testbed.WaitFor(ctx, "the chains are gone", time.Minute, func() (bool, error) {
		var list []onpath.Chain
		err := d.Testbed.Get(ctx, &list, "chains")
		return len(list) == 0, err
	}); err != nil {
		return way, err
	}
	time.Sleep(time.Second) // for the nodes' acknowledgements
	return way, nil
}

// allMeasured reports whether every pair of the nodes, and each node with the origin, has
// an answer.
func (d *accelerateRun) allMeasured(ctx context.Context, nodes []string) (bool, error) {
	out, err := d.Testbed.Onpath(ctx, "measure", "-o", "json")
	if err != nil {
		return false, err
	}
	var m struct {
		Nodes map[string][]onpath.Distance `json:"nodes"`
	}
	if err := json.Unmarshal(out, &m); err != nil {
		return false, err
	}
	d.report.Measured = m.Nodes
	answers := 0
	for _, n := range nodes {
		for _, x := range m.Nodes[n] {
			if x.RTT > 0 {
				answers++
			}
		}
	}
	return answers >= len(nodes)*(len(nodes)-1)/2+len(nodes)*len(transfers), nil
}

// times measures each size several times and keeps the median.
func (d *accelerateRun) times(ctx context.Context, name string, a *onpath.Accelerator) (acceleratedWay, error) {
	way := acceleratedWay{Name: name}
	for _, t := range transfers {
		origin := net.JoinHostPort(acceleratedOrigin, strconv.Itoa(int(t.port)))
		size := strconv.FormatInt(t.bytes, 10)
		out, err := d.Testbed.Exec(ctx, "client", d.Testbed.Bin(), "demo", "receive", origin, size, strconv.Itoa(d.Runs))
		if err != nil {
			return way, err
		}
		var took []time.Duration
		if err := json.Unmarshal(out, &took); err != nil {
			return way, err
		}
		slices.Sort(took)
		x := transferTimes{Bytes: t.bytes, Median: took[len(took)/2], Low: took[len(took)/4], High: took[len(took)*3/4]}
		if a != nil {
			for _, p := range a.Status.Paths {
				if p.Origin != origin {
					continue
				}
				x.Path = p.Nodes
				if p.Ingress == "ireland" { // the model begins at the ingress, which must be at the client
					x.Model, x.direct = time.Duration(p.Time), time.Duration(p.Direct)
				}
			}
		}
		d.Say("%s, %s: %s (half of %d runs: %s to %s)", name, bytesText(t.bytes), msText(x.Median), d.Runs, msText(x.Low), msText(x.High))
		way.Cases = append(way.Cases, x)
	}
	return way, nil
}

func (r *accelerateReport) way(name string) acceleratedWay {
	for _, w := range r.Ways {
		if w.Name == name {
			return w
		}
	}
	return acceleratedWay{Cases: make([]transferTimes, len(transfers))}
}

func (r *accelerateReport) check() {
	check := r.Checks.add
	direct, one, three := r.way("direct").Cases[2], r.way("one relay").Cases[2], r.way("three relays").Cases[2]
	chosen := r.way("chosen by onpath").Cases
	times := func(a, b transferTimes) float64 { return float64(a.Median) / float64(max(b.Median, 1)) }
	check(times(direct, one) >= 1.6, "one relay shortens 500 kB", "%.2f times as fast as direct", times(direct, one))
	check(times(direct, three) >= 2, "three relays shorten it more", "%.2f times as fast as direct", times(direct, three))
	check(len(chosen[2].Path) > len(chosen[0].Path), "more relays are chosen for 500 kB than for 10 kB", "%s; %s",
		strings.Join(chosen[2].Path, " → "), strings.Join(chosen[0].Path, " → "))
	small, alone := r.way("three relays").Cases[0].Median, r.way("direct").Cases[0].Median
	check(float64(small) <= 1.35*float64(alone), "10 kB lose little by three relays", "%s instead of %s", msText(small), msText(alone))
	worst, where := 0.0, "no transfer has a modelled time"
	for _, w := range r.Ways {
		for _, c := range w.Cases {
			if c.Model == 0 {
				continue
			}
			off := math.Abs(float64(c.Median)/float64(c.Model) - 1)
			if off >= worst {
				worst = off
				where = fmt.Sprintf("furthest off: %s, %s: %s instead of %s, %.1f %%",
					w.Name, bytesText(c.Bytes), msText(c.Median), msText(c.Model), off*100)
			}
		}
	}
	check(worst <= 0.15, "measured times are within 15 % of the model's", "%s", where)
}

// Print writes the comparison for people.
func (r *accelerateReport) Print(w io.Writer) {
	fmt.Fprintln(w)
	t := table.New("WAY", ">10 kB", ">MODEL", ">100 kB", ">MODEL", ">500 kB", ">MODEL", "RELAYS FOR 500 kB")
	for _, x := range r.Ways {
		row := []string{x.Name}
		for _, c := range x.Cases {
			model := "-"
			if c.Model > 0 {
				model = msText(c.Model)
			}
			row = append(row, msText(c.Median), model)
		}
		t.Row(append(row, strings.Join(x.Cases[len(x.Cases)-1].Path, " → "))...)
	}
	_ = t.Write(w)
	fmt.Fprintln(w)
	r.printWoken(w)
	r.Checks.print(w)
}

// RunSend serves transfers: eight bytes of size, then as many bytes as they say.
func RunSend(ctx context.Context, addresses []string) error {
	lc := net.ListenConfig{Control: cubic}
	lc.SetMultipathTCP(false)
	errs := make(chan error, len(addresses))
	for _, a := range addresses {
		l, err := lc.Listen(ctx, "tcp", a)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					errs <- err
					return
				}
				go sendAsked(c)
			}
		}()
	}
	err := <-errs
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// mostSent bounds what one connection asks for.
const mostSent = 64 << 20

func sendAsked(c net.Conn) {
	defer c.Close()
	var size [8]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return
	}
	// One write: the ends of smaller ones would fill segments in part, and so take room in
	// windows that are counted in segments.
	_, _ = c.Write(make([]byte, min(binary.BigEndian.Uint64(size[:]), mostSent)))
}

// RunReceive times transfers from the SYN to the last byte; to udp/ADDRESS, from a datagram
// to its echo.
func RunReceive(ctx context.Context, address string, size int64, count int) ([]time.Duration, error) {
	network, d := "tcp", net.Dialer{Timeout: 10 * time.Second, Control: cubic}
	if a, ok := strings.CutPrefix(address, "udp/"); ok {
		network, address, d.Control = "udp", a, nil
	}
	var took []time.Duration
	for range count {
		start := time.Now()
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err = c.Write(binary.BigEndian.AppendUint64(nil, uint64(size)))
		n := int64(0)
		if err == nil {
			n, err = io.CopyN(io.Discard, c, size)
		}
		// The end of the stream is not waited for: where the last segment fills the window,
		// the FIN comes a round trip after it.
		took = append(took, time.Since(start))
		c.Close()
		if err != nil {
			return nil, fmt.Errorf("%d of %d bytes came: %w", n, size, err)
		}
	}
	return took, nil
}

// cubic is the congestion control of the paper's measurements.
func cubic(_, _ string, c syscall.RawConn) (err error) {
	e := c.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") })
	return errors.Join(e, err)
}

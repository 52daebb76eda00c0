package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab"
)

func reserveDemonstration() Demonstration {
	return Demonstration{
		Name:  "reserve",
		Short: "Reserve capacity for seconds, change it under traffic, pay",
		Long: `Emulate three cloudlets and reserve capacity in them as in PacketCloud's Tables 1
and 2, with slots of seconds. A slot grows under a stream, a request is declined
with the time at which it would fit, a conflict moves an instance while packets
pass it, a reservation is cancelled, and all is paid for. It needs iperf3
(scripts/setup reserve installs it).`,
		Seconds: 90,
		Needs:   append([]string{"iperf3"}, containers...),
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &reserveRun{Run: r}
			if err := d.show(ctx); err != nil {
				return nil, err
			}
			d.check()
			return &d.report, nil
		},
	}
}

// ReserveReport is what the demonstration of reservations found.
type ReserveReport struct {
	Declined string        `json:"declined"` // the answer to a request that does not fit
	Ready    time.Duration `json:"ready"`    // from the beginning of Table 1's slot to its chain carrying traffic
	Resized  time.Duration `json:"resized"`  // from the beginning of Table 2's second slot to the limits being in force
	Growing  Stream        `json:"growing"`  // through the instance that grew
	Moving   Stream        `json:"moving"`   // through the instance that moved
	From     string        `json:"from"`     // its node before
	To       string        `json:"to"`       // and after
	Holds    time.Duration `json:"holds"`    // from the request to grow to the growth holding
	Gone     time.Duration `json:"gone"`     // from the end of the slots to no instance being left
	Refund   onpath.Money  `json:"refund"`
	Expected onpath.Money  `json:"expectedRefund"` // by PacketCloud's formula, from the times in the ledger
	// Traffic and CPU are the use that the invoice bills: bytes, and nanoseconds.
	Traffic uint64        `json:"traffic"`
	CPU     time.Duration `json:"cpu"`
	Invoice string        `json:"invoice"`
	Ledger  string        `json:"ledger"`
	Checks  `json:"checks"`
}

// Stream is what iperf3 saw of UDP.
type Stream struct {
	Packets int64 `json:"packets"`
	// Lost on the way. Late came while iperf3 waited for a processor, and its socket was
	// full.
	Lost int64 `json:"lost"`
	Late int64 `json:"late,omitempty"`
	// Seconds are the packets lost in each second, as the receiver counted.
	Seconds []int64 `json:"seconds,omitempty"`
}

// String is "0 of 7500 UDP packets lost".
func (s Stream) String() string {
	text := fmt.Sprintf("%d of %d UDP packets lost", s.Lost, s.Packets)
	if s.Late > 0 {
		text += fmt.Sprintf(" on the way; %d found iperf3's socket full", s.Late)
	}
	return text
}

type reserveRun struct {
	*Run
	report ReserveReport
	begin  time.Time // of the slots
}

// payload of the streams' packets, in bytes; headers of UDP and IP come on top.
const payload = 1200

// Times after begin.
const (
	growAt = 13 * time.Second
	endAt  = 40 * time.Second
)

func (d *reserveRun) show(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/reserve.yaml"))
	if err != nil {
		return err
	}
	spec := TestbedSpec{Topology: topology, HostImage: true, Server: TestbedNode{Host: "server", Address: "10.255.0.10"}}
	for i, name := range []string{"fra-gw", "fra1", "fra2", "par1", "lon1"} {
		spec.Nodes = append(spec.Nodes, TestbedNode{Name: name, Host: name, Address: fmt.Sprintf("10.255.0.%d", i+1),
			Cloudlet: strings.TrimRight(name, "-gw12")})
	}
	if err := d.SetUp(ctx, spec); err != nil {
		return err
	}
	for _, port := range []string{"5301", "5302"} {
		if err := d.Testbed.Start("iperf3-"+port, "origin", "iperf3", "-s", "-J", "-p", port); err != nil {
			return err
		}
	}
	if err := d.tell(ctx, "apply", "-f", d.Example("reserve/pool.yaml")); err != nil {
		return err
	}
	if err := d.tell(ctx, "account", "credit", "default", "20", "--reference", "transfer 1"); err != nil {
		return err
	}
	if err := d.reserveTables(ctx); err != nil {
		return err
	}
	if err := d.decline(ctx); err != nil {
		return err
	}
	if err := d.tell(ctx, "apply", "-f", d.Example("reserve/service.yaml")); err != nil {
		return err
	}
	if err := d.cancel(ctx); err != nil {
		return err
	}
	if err := d.run(ctx); err != nil {
		return err
	}
	return d.pay(ctx)
}

// tell runs a command as a user would, and shows it with what it printed.
func (d *reserveRun) tell(ctx context.Context, args ...string) error {
	shown := strings.Join(args, " ")
	d.Say("onpath %s", strings.ReplaceAll(shown, d.Dir+"/", ""))
	out, err := d.Testbed.Onpath(ctx, args...)
	d.quote(string(out))
	return err
}

func (d *reserveRun) quote(text string) {
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			fmt.Fprintf(d.Out, "            %s", line)
		}
	}
}

// file writes a reservation beside the examples.
func (d *reserveRun) file(name, spec string) (string, error) {
	p := filepath.Join(d.Dir, "examples/reserve", name+".yaml")
	text := fmt.Sprintf("apiVersion: onpath/v1alpha1\nkind: Reservation\nmetadata: {name: %s}\nspec:\n%s", name, spec)
	return p, os.WriteFile(p, []byte(text), 0o644)
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

const (
	small  = "{cpu: 1, memory: 256Mi, disk: 300Gi, network: 1Gbit}"
	large  = "{cpu: 2, memory: 1Gi, disk: 900Gi, network: 5Gbit}"
	larger = "{cpu: 3, memory: 1Gi, disk: 900Gi, network: 5Gbit}"
)

func (d *reserveRun) table2(second string) (string, error) {
	return d.file("table2", fmt.Sprintf("  near: 10.1.0.0/24\n  from: %s\n  slots:\n  - {until: %s, capacity: %s}\n  - {until: %s, capacity: %s}\n",
		at(d.begin), at(d.begin.Add(growAt)), small, at(d.begin.Add(endAt)), second))
}

// reserveTables reserves as PacketCloud's Tables 1 and 2 do.
func (d *reserveRun) reserveTables(ctx context.Context) error {
	d.begin = time.Now().Add(6 * time.Second).Truncate(time.Millisecond)
	one, err := d.file("table1", fmt.Sprintf("  near: 10.1.0.0/24\n  from: %s\n  until: %s\n  capacity: %s\n",
		at(d.begin), at(d.begin.Add(endAt)), small))
	if err != nil {
		return err
	}
	two, err := d.table2(large)
	if err != nil {
		return err
	}
	if err := d.tell(ctx, "apply", "-f", one, "--dry-run"); err != nil {
		return err
	}
	if err := d.tell(ctx, "apply", "-f", one); err != nil {
		return err
	}
	return d.tell(ctx, "apply", "-f", two)
}

func (d *reserveRun) decline(ctx context.Context) error {
	much, err := d.file("much", fmt.Sprintf("  cloudlet: fra\n  instances: 2\n  from: %s\n  until: %s\n  capacity: {cpu: 3, memory: 256Mi}\n", at(d.begin), at(d.begin.Add(endAt/2))))
	if err != nil {
		return err
	}
	d.Say("onpath apply -f examples/reserve/much.yaml")
	_, err = d.Testbed.Onpath(ctx, "apply", "-f", much)
	var code *exec.ExitError
	if err == nil || !errors.As(err, &code) || code.ExitCode() != 7 {
		return fmt.Errorf("a request that does not fit was to be declined with code 7: %w", err)
	}
	_, d.report.Declined, _ = strings.Cut(err.Error(), "declined: ")
	d.quote("declined: " + d.report.Declined + "\n")
	return nil
}

// cancel makes a reservation and gives it up again.
func (d *reserveRun) cancel(ctx context.Context) error {
	from := time.Now().Add(10 * time.Minute)
	later, err := d.file("later", fmt.Sprintf("  cloudlet: par\n  from: %s\n  until: %s\n  capacity: {cpu: 1, memory: 1Gi}\n", at(from), at(from.Add(2*time.Minute))))
	if err != nil {
		return err
	}
	if err := d.tell(ctx, "apply", "-f", later); err != nil {
		return err
	}
	time.Sleep(time.Second)
	if err := d.tell(ctx, "delete", "reservation", "later"); err != nil {
		return err
	}
	var r onpath.Reservation
	if err := d.Testbed.Get(ctx, &r, "reservation", "later"); err != nil {
		return err
	}
	st := &r.Status
	d.report.Refund = st.Refunded
	paid, gone := st.Steps[0].At, st.Steps[len(st.Steps)-1].At
	begin := from.UTC().Round(0)
	share := big.NewRat(int64(begin.Sub(gone)), int64(begin.Sub(paid)))
	share.Mul(share, big.NewRat(int64(st.Paid), 1))
	d.report.Expected = onpath.Money(new(big.Int).Quo(share.Num(), share.Denom()).Int64())
	return nil
}

// run drives traffic while slots begin, grow and end.
func (d *reserveRun) run(ctx context.Context) error {
	sleepUntil(ctx, d.begin)
	if err := d.Testbed.WaitActive(ctx, "one", 20*time.Second, nil); err != nil {
		return err
	}
	d.report.Ready = time.Since(d.begin)
	d.Say("table1's chain carries traffic %.1f s after its slot began", d.report.Ready.Seconds())
	if err := d.Testbed.WaitActive(ctx, "two", 20*time.Second, nil); err != nil {
		return err
	}
	grown := d.stream(ctx, "5302", time.Until(d.begin.Add(growAt+4*time.Second)))
	if err := d.resized(ctx); err != nil {
		return err
	}
	if err := grown(&d.report.Growing); err != nil {
		return err
	}
	d.Say("iperf3 through the instance that grew: %s", d.report.Growing)
	if err := d.conflict(ctx); err != nil {
		return err
	}
	end := d.begin.Add(endAt)
	sleepUntil(ctx, end)
	err := d.Testbed.WaitFor(ctx, "the instances are gone", time.Minute, func() (bool, error) {
		list, err := d.Testbed.Instances(ctx)
		return len(list) == 0, err
	})
	d.report.Gone = time.Since(end)
	d.Say("the slots ended; nothing was left %.1f s later", d.report.Gone.Seconds())
	return err
}

// resized waits until the second slot's limits are in force.
func (d *reserveRun) resized(ctx context.Context) error {
	sleepUntil(ctx, d.begin.Add(growAt))
	err := d.Testbed.WaitFor(ctx, "table2's instance is resized", time.Minute, func() (bool, error) {
		var events []onpath.Event
		if err := d.Testbed.Get(ctx, &events, "events"); err != nil {
			return false, err
		}
		for _, e := range events {
			if e.Spec.Reason == "Resized" {
				d.report.Resized = e.Spec.Time.Sub(d.begin.Add(growAt))
				d.Say("table2's second slot began: its instance %s", e.Spec.Message)
				return true, nil
			}
		}
		return false, nil
	})
	return err
}

// conflict has table2 grow more than its node can give: table1's instance moves.
func (d *reserveRun) conflict(ctx context.Context) error {
	var err error
	if d.report.From, err = d.nodeOf(ctx, "table1"); err != nil {
		return err
	}
	moved := d.stream(ctx, "5301", 9*time.Second)
	sleepUntil(ctx, time.Now().Add(time.Second))
	two, err := d.table2(larger)
	if err != nil {
		return err
	}
	asked := time.Now()
	if err := d.tell(ctx, "apply", "-f", two); err != nil {
		return err
	}
	if d.report.To, err = d.nodeOf(ctx, "table1"); err != nil {
		return err
	}
	err = d.Testbed.WaitFor(ctx, "table2 has grown", time.Minute, func() (bool, error) {
		var r onpath.Reservation
		err := d.Testbed.Get(ctx, &r, "reservation", "table2")
		slot := r.Status.At(time.Now())
		return slot != nil && slot.Capacity.CPU == 3000, err
	})
	if err != nil {
		return err
	}
	d.report.Holds = time.Since(asked)
	if err := moved(&d.report.Moving); err != nil {
		return err
	}
	d.Say("table1's instance moved from %s to %s; iperf3 through it: %s", d.report.From, d.report.To, d.report.Moving)
	return d.tell(ctx, "capacity", "--cloudlet", "fra", "--to", at(d.begin.Add(endAt)))
}

func (d *reserveRun) nodeOf(ctx context.Context, name string) (string, error) {
	var r onpath.Reservation
	if err := d.Testbed.Get(ctx, &r, "reservation", name); err != nil || len(r.Status.Places) == 0 {
		return "", fmt.Errorf("reservation %s has no place: %w", name, err)
	}
	return r.Status.Places[0].Node, nil
}

// stream sends UDP from client to origin for a time, and is waited for by what it returns.
func (d *reserveRun) stream(ctx context.Context, port string, length time.Duration) func(*Stream) error {
	type answer struct {
		out []byte
		err error
	}
	done := make(chan answer, 1)
	var before int64
	go func() {
		var err error
		if before, err = d.overflows(ctx); err != nil {
			done <- answer{nil, err}
			return
		}
		out, err := d.Testbed.Exec(ctx, "client", "iperf3", "-c", "10.9.0.2", "-p", port, "-u", "-b", "8M", "-l",
			fmt.Sprint(payload), "-t", fmt.Sprint(int(length.Seconds())), "-J", "--get-server-output")
		done <- answer{out, err}
	}()
	return func(s *Stream) error {
		a := <-done
		var r struct {
			End struct {
				Sum struct {
					Packets int64 `json:"packets"`
					Lost    int64 `json:"lost_packets"`
				} `json:"sum"`
			} `json:"end"`
			Server struct {
				Intervals []struct {
					Sum struct {
						Lost int64 `json:"lost_packets"`
					} `json:"sum"`
				} `json:"intervals"`
			} `json:"server_output_json"`
		}
		if err := json.Unmarshal(a.out, &r); err != nil || a.err != nil {
			return fmt.Errorf("iperf3: %w: %.300s", errors.Join(a.err, err), a.out)
		}
		after, err := d.overflows(ctx)
		if err != nil {
			return err
		}
		late := after - before
		*s = Stream{Packets: r.End.Sum.Packets, Lost: r.End.Sum.Lost - late, Late: late}
		for _, i := range r.Server.Intervals {
			s.Seconds = append(s.Seconds, i.Sum.Lost)
		}
		return nil
	}
}

// overflows is how many datagrams full sockets of origin have turned away.
func (d *reserveRun) overflows(ctx context.Context) (int64, error) {
	out, err := d.Testbed.Exec(ctx, "origin", "cat", "/proc/net/snmp")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "Udp:" {
			continue
		}
		if i := slices.Index(names, "RcvbufErrors"); i > 0 && i < len(f) {
			return strconv.ParseInt(f[i], 10, 64)
		}
		names = f
	}
	return 0, fmt.Errorf("/proc/net/snmp does not say how many datagrams found a full socket")
}

func (d *reserveRun) pay(ctx context.Context) error {
	err := d.Testbed.WaitFor(ctx, "use is billed", time.Minute, func() (bool, error) {
		out, err := d.Testbed.Onpath(ctx, "invoice", "-o", "json")
		if err != nil {
			return false, err
		}
		var inv onpath.Invoice
		if err := json.Unmarshal(out, &inv); err != nil {
			return false, err
		}
		d.report.Traffic, d.report.CPU = 0, 0
		for _, l := range inv.Lines {
			d.report.Traffic, d.report.CPU = d.report.Traffic+l.Bytes, d.report.CPU+l.CPU
		}
		return d.report.Traffic >= d.report.sent(), nil
	})
	if err != nil {
		return err
	}
	d.Say("onpath invoice")
	out, err := d.Testbed.Onpath(ctx, "invoice")
	if err != nil {
		return err
	}
	d.report.Invoice = string(out)
	d.quote(d.report.Invoice)
	d.Say("onpath ledger check")
	out, err = d.Testbed.Onpath(ctx, "ledger", "check")
	d.report.Ledger = strings.TrimSpace(string(out))
	d.quote(string(out))
	return err
}

func sleepUntil(ctx context.Context, t time.Time) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(t)):
	}
}

func (d *reserveRun) check() {
	r := &d.report
	check := r.Checks.add
	check(strings.Contains(r.Declined, "it would fit from"), "a request that does not fit is declined", "%s", r.Declined)
	check(r.Ready < 3*time.Second, "what is reserved runs when its slot begins",
		"its chain carried traffic %.1f s after, which includes the function's own start", r.Ready.Seconds())
	check(r.Resized < 2*time.Second, "a slot grows while it runs",
		"the limits were in force %.1f s after the second slot began", r.Resized.Seconds())
	check(r.Growing.Lost == 0 && r.Growing.Packets > 0, "no packet is lost while an instance grows", "%d of %d",
		r.Growing.Lost, r.Growing.Packets)
	check(r.From != r.To, "a conflict moves an instance",
		"from %s to %s; the growth held %.1f s after it was asked for", r.From, r.To, r.Holds.Seconds())
	check(r.Moving.Lost == 0 && r.Moving.Packets > 0, "no packet is lost while an instance moves", "%d of %d",
		r.Moving.Lost, r.Moving.Packets)
	check(r.Gone < 3*time.Second, "at the end nothing is left", "%.1f s after", r.Gone.Seconds())
	off := r.Refund - r.Expected
	check(r.Refund > 0 && -1 <= off && off <= 1, "a cancellation gives back F × (tB − tC) / (tB − tA)", "%s", r.Refund)
	sent := r.sent()
	check(r.Traffic >= sent && r.Traffic < sent+sent/20, "use is metered, also of what moved",
		"%d bytes of traffic, %d were sent; %s of processor time", r.Traffic, sent, r.CPU.Round(time.Millisecond))
	check(strings.HasSuffix(r.Ledger, " 0 wrong"), "every posting can be recomputed", "%s", r.Ledger)
}

// sent are the bytes that the streams brought, with headers of UDP and IP.
func (r *ReserveReport) sent() uint64 {
	return uint64(r.Growing.Packets+r.Moving.Packets) * (payload + 28)
}

// Print writes the effects for people.
func (r *ReserveReport) Print(w io.Writer) {
	fmt.Fprintln(w)
	r.print(w)
}

package render

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

func reservationRow(o *onpath.Reservation, age string) []string {
	st := &o.Status
	var nodes []string
	for _, p := range st.Places {
		name := p.Node
		if p.Leaving != "" {
			name = p.Leaving + "→" + p.Node
		}
		nodes = append(nodes, name)
	}
	slices.Sort(nodes)
	paid := (st.Paid - st.Refunded).String()
	if st.Currency != "" {
		paid += " " + st.Currency
	}
	return []string{o.Metadata.Tenant, o.Metadata.Name, string(st.State), st.Cloudlet, strings.Join(slices.Compact(nodes), ","),
		moment(st.Begin()), moment(st.End()), paid, age, st.Reason}
}

func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format("2006-01-02T15:04:05Z07:00")
}

// promise prints how a reservation stands.
func promise(w io.Writer, st *onpath.ReservationStatus) error {
	fmt.Fprintln(w)
	t := table.New("STATE", "SINCE", "MESSAGE")
	for _, s := range st.Steps {
		t.Row(string(s.State), moment(s.At), s.Reason)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = table.New("FROM", "UNTIL", ">CPU", ">MEMORY", ">DISK", ">NETWORK", "NODES")
	var nodes []string
	for _, p := range st.Places {
		nodes = append(nodes, p.Node)
	}
	for _, s := range st.Slots {
		c := s.Capacity
		t.Row(moment(s.From), moment(s.Until), c.CPU.String(), c.Memory.Rounded(), c.Disk.Rounded(),
			c.Network.Rounded(), strings.Join(nodes, ","))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\npaid %s, given back %s, in %s\n", st.Paid, st.Refunded, currencyOf(st.Currency))
	for _, n := range st.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	return err
}

// Quote prints what the pool says of a reservation.
func Quote(w io.Writer, q *onpath.Quote) {
	line := func(format string, args ...any) { fmt.Fprintf(w, "  "+format+"\n", args...) }
	if q.Cloudlet != "" {
		var nodes []string
		for _, p := range q.Places {
			nodes = append(nodes, p.Node)
		}
		line("%s in cloudlet %s on %s", q.State, q.Cloudlet, strings.Join(nodes, ", "))
	} else {
		line("%s", q.State)
	}
	unit := ""
	if q.Currency != "" {
		unit = " " + q.Currency
	}
	if q.Price != 0 {
		line("to pay %s%s", q.Price, unit)
	}
	if q.Refund != 0 {
		line("given back %s%s", q.Refund, unit)
	}
	if !q.Holds.IsZero() {
		line("the growth holds from %s: others move first", moment(q.Holds))
	}
	for _, n := range q.Notes {
		line("note: %s", n)
	}
}

// Capacity prints what nodes have promised over time, a line for each change.
func Capacity(w io.Writer, v *onpath.CapacityView) error {
	t := table.New("CLOUDLET", "NODE", "FROM", "", ">CPU", ">MEMORY", ">DISK", ">NETWORK")
	put := func(cl, node, from, what string, r onpath.Resources) {
		t.Row(cl, node, from, what, r.CPU.String(), r.Memory.Rounded(), r.Disk.Rounded(), r.Network.Rounded())
	}
	for _, n := range v.Nodes {
		name := n.Node
		if !n.Usable {
			name += " (takes none now)"
		}
		put(n.Cloudlet, name, "", "total", n.Total)
		put("", "", "", "operator's share", n.Share)
		for _, s := range n.Steps {
			put("", "", moment(s.At), "promised", s.Promised)
			put("", "", "", "free", s.Free)
		}
	}
	return t.Write(w)
}

// Invoice prints a tenant's month; amounts are rounded to cents.
func Invoice(w io.Writer, inv *onpath.Invoice) error {
	fmt.Fprintf(w, "tenant %s, %s, amounts in %s\n\n", inv.Tenant, inv.Month, currencyOf(inv.Currency))
	t := table.New("RESERVATION", ">CHARGED", ">USE", ">REFUNDED", ">CREDITED", ">CPU TIME", ">TRAFFIC", ">TOTAL")
	for _, l := range inv.Lines {
		t.Row(l.Reservation, l.Charged.Cents(), l.Use.Cents(), l.Refunded.Cents(), l.Compensated.Cents(),
			l.CPU.Round(time.Millisecond).String(), Bytes(l.Bytes), l.Total.Cents())
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\ntotal %s, paid in %s; balance %s before, %s after\n", inv.Total.Cents(),
		inv.Credits.Cents(), inv.Opening.Cents(), inv.Closing.Cents())
	return err
}

// LedgerDays is a table of the ledger's closed days.
func LedgerDays(w io.Writer, days []onpath.LedgerDay) error {
	t := table.New("DAY", ">POSTINGS", ">RESERVATIONS", ">BYTES", "FILE")
	for _, d := range days {
		file := d.File
		if d.Missing {
			file += " (missing)"
		}
		t.Row(d.Day, fmt.Sprint(d.Postings), fmt.Sprint(d.Reservations), fmt.Sprint(d.Bytes), file)
	}
	return t.Write(w)
}

// Postings prints a page of a tenant's postings, and where the next one begins.
func Postings(w io.Writer, p *onpath.PostingPage) error {
	t := table.New(">NUMBER", "AT", "KIND", "RESERVATION", ">AMOUNT", "CAUSE")
	for _, x := range p.Postings {
		t.Row(fmt.Sprint(x.Number), x.At.Format(time.RFC3339), string(x.Kind), x.Reservation, x.Amount.String(), x.Cause)
	}
	err := t.Write(w)
	if err == nil && p.Next > 0 {
		_, err = fmt.Fprintf(w, "\nmore with --from %d\n", p.Next)
	}
	return err
}

func currencyOf(s string) string {
	if s == "" {
		return "units of the price list"
	}
	return s
}

// InvoiceCSV writes a tenant's month for other programs; amounts to the millionth.
func InvoiceCSV(w io.Writer, inv *onpath.Invoice) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"tenant", "month", "currency", "reservation", "charged", "use", "refunded", "compensated",
		"cpu_seconds", "bytes", "total"})
	for _, l := range inv.Lines {
		_ = c.Write([]string{inv.Tenant, inv.Month, inv.Currency, l.Reservation, l.Charged.String(), l.Use.String(),
			l.Refunded.String(), l.Compensated.String(),
			fmt.Sprintf("%.3f", l.CPU.Seconds()), fmt.Sprint(l.Bytes), l.Total.String()})
	}
	c.Flush()
	return c.Error()
}

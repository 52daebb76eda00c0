// Package render shows objects, traces and previews as text for a terminal.
package render

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// Objects prints objects of one kind as a table; wide with more columns.
func Objects(w io.Writer, kind onpath.Kind, objects []onpath.Object, now time.Time, wide bool) error {
	t := Table(kind, wide)
	for _, o := range objects {
		t.Row(Row(o, now, wide)...)
	}
	return t.Write(w)
}

// Table is an empty table with the columns of a kind.
func Table(kind onpath.Kind, wide bool) *table.Table {
	if wide {
		return table.New(widen(kind, columns[kind], moreColumns[kind])...)
	}
	return table.New(columns[kind]...)
}

// Row are the cells of one object.
func Row(o onpath.Object, now time.Time, wide bool) []string {
	if wide {
		return widen(o.ObjectKind(), row(o, now), moreCells(o))
	}
	return row(o, now)
}

// widen puts more before the message, which is the last column, or at the end.
func widen(kind onpath.Kind, cells, more []string) []string {
	at := len(columns[kind])
	if columns[kind][at-1] == "MESSAGE" {
		at--
	}
	return slices.Insert(slices.Clone(cells), at, more...)
}

var columns = map[onpath.Kind][]string{
	onpath.KindTenant:      {"NAME", "DISPLAY", ">MAX-FLOWS", ">NEW-FLOWS", ">AGE"},
	onpath.KindCloudlet:    {"NAME", "CITY", ">READY", ">AGE"},
	onpath.KindNode:        {"NAME", "CLOUDLET", "STATE", "UPLINKS", "CPU", "MEMORY", ">AGE", "MESSAGE"},
	onpath.KindPriceList:   {"NAME", "CURRENCY", ">CPU/H", ">MEMORY/GI/H", ">DISK/GI/H", ">NETWORK/GBIT/H", ">AGE"},
	onpath.KindReservation: {"TENANT", "NAME", "STATE", "CLOUDLET", "NODES", "FROM", "UNTIL", ">PAID", ">AGE", "MESSAGE"},
	onpath.KindPrefixClaim: {"TENANT", "NAME", "PREFIX", "PROOF", "STATE", ">LEFT", ">AGE", "MESSAGE"},
	onpath.KindWebhook:     {"TENANT", "NAME", "URL", "LEVEL", ">AGE"},
	onpath.KindHosts:       {"TENANT", "NAME", "ADDRESSES", "VIRTUAL", ">AGE"},
	onpath.KindFunction:    {"TENANT", "NAME", "IMAGE", "ATTACH", "STATE", "PACKETS", ">AGE"},
	onpath.KindDeployment:  {"TENANT", "NAME", "FUNCTION", "CHAIN", ">READY", ">AGE", "MESSAGE"},
	onpath.KindSecret:      {"TENANT", "NAME", "KEYS", ">SIZE", ">AGE"},
	onpath.KindService:     {"TENANT", "NAME", "DNS", "DEPLOYMENT", "ANSWERS", ">SERVES", ">AGE", "MESSAGE"},
	onpath.KindChain:       {"TENANT", "NAME", "FROM", "TO", "THROUGH", "STATE", ">AGE", "MESSAGE"},
	onpath.KindMeasurement: {"TENANT", "NAME", "NODES", ">EVERY", ">AGE"},
	onpath.KindAccelerator: {"TENANT", "NAME", "ORIGINS", "BETWEEN", "STATE", ">AGE", "MESSAGE"},
	onpath.KindInstance:    {"TENANT", "NAME", "NODE", "STATE", ">RESTARTS", ">AGE", "MESSAGE"},
	onpath.KindLease:       {"TENANT", "NAME", "NODE", "PUBLISHER", "MODULE", "STATE", "TAKES", "SERVES", ">LEFT", ">AGE", "MESSAGE"},
	onpath.KindEvent:       {">AGE", ">COUNT", "ABOUT", "NODE", "REASON", "MESSAGE"},
}

func row(o onpath.Object, now time.Time) []string {
	m := o.Meta()
	age := Age(m.Created, now)
	switch o := o.(type) {
	case *onpath.Tenant:
		return []string{m.Name, o.Spec.Display, strconv.Itoa(o.Spec.MaxFlows), newFlows(o), age}
	case *onpath.Cloudlet:
		return []string{m.Name, o.Spec.Location.City, fmt.Sprintf("%d/%d", o.Status.ReadyNodes, o.Status.Nodes), age}
	case *onpath.Node:
		return nodeRow(o, age)
	case *onpath.PriceList:
		h := o.Spec.Hour
		return []string{m.Name, o.Spec.Currency, h.CPU.String(), h.Memory.String(), h.Disk.String(), h.Network.String(), age}
	case *onpath.Reservation:
		return reservationRow(o, age)
	case *onpath.PrefixClaim:
		return []string{m.Tenant, m.Name, o.Spec.Prefix.String(), string(o.Spec.Method), string(o.Status.State), left(o.Status.Until, now),
			age, o.Status.Evidence}
	case *onpath.Webhook:
		return []string{m.Tenant, m.Name, o.Spec.URL, string(o.Spec.Level), age}
	case *onpath.Hosts:
		addresses := prefixes(o.Spec.Addresses)
		if o.Spec.Node != "" {
			addresses = "node " + o.Spec.Node
		}
		return []string{m.Tenant, m.Name, addresses, prefixes(o.Spec.Virtual), age}
	case *onpath.Function:
		t := o.Spec.Traits()
		attach := string(t.Attach)
		if t.Inline {
			attach = "inline"
		}
		return []string{m.Tenant, m.Name, shortImage(t.Runs), attach, string(o.Spec.State), string(o.Spec.Packets), age}
	case *onpath.Deployment:
		return []string{m.Tenant, m.Name, string(o.Spec.Function), o.Status.Chain, fmt.Sprintf("%d/%d", o.Status.Ready, o.Status.Desired),
			age, trouble(o.Status.Conditions)}
	case *onpath.Secret:
		keys := append(slices.Collect(maps.Keys(o.Spec.Data)), slices.Collect(maps.Keys(o.Spec.Sealed))...)
		slices.Sort(keys)
		return []string{m.Tenant, m.Name, strings.Join(keys, ","), Bytes(uint64(o.Size())), age}
	case *onpath.Service:
		return []string{m.Tenant, m.Name, o.Spec.Name, string(o.Spec.Deployment), answered(o.Spec.Select), serves(o), age,
			trouble(o.Status.Conditions)}
	case *onpath.Chain:
		return []string{m.Tenant, m.Name, Endpoints(o.Spec.From), Endpoints(o.Spec.To), through(o), chainState(o), age,
			trouble(o.Status.Conditions)}
	case *onpath.Measurement:
		return []string{m.Tenant, m.Name, strings.Join(o.Spec.Nodes, ","), o.Spec.Every.String(), age}
	case *onpath.Accelerator:
		var origins []string
		for _, x := range o.Spec.Origins {
			origins = append(origins, fmt.Sprintf("%s:%d", x.Address, x.Port))
		}
		return []string{m.Tenant, m.Name, strings.Join(origins, ","), strings.Join(o.Spec.Between, ","), acceleratorState(o), age,
			trouble(o.Status.Conditions)}
	case *onpath.Instance:
		state := string(o.Status.State)
		if !o.Spec.Draining.IsZero() && o.Status.State != onpath.InstanceStopped {
			state += ", draining"
		}
		return []string{m.Tenant, m.Name, o.Spec.Node, state, strconv.Itoa(o.Status.Restarts), age, o.Status.Message}
	case *onpath.Lease:
		return []string{m.Tenant, m.Name, o.Spec.Node, o.Spec.Publisher, o.Spec.Module, string(o.Status.State), leaseTakes(o),
			strings.Join(o.Spec.Servers(), ", "), left(o.Spec.Until, now), age,
			o.Status.Message}
	case *onpath.Event:
		s := o.Spec
		reason := s.Reason
		if s.Warning {
			reason = "! " + reason
		}
		return []string{Age(s.Time, now), strconv.Itoa(s.Count), s.About, s.Node, reason, s.Message}
	}
	return []string{m.Name}
}

// acceleratorPaths are the paths in use, for describe.
func acceleratorPaths(w io.Writer, a *onpath.Accelerator) error {
	if len(a.Status.Paths) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := table.New("INGRESS", "ORIGIN", "RELAYS", ">TIME", ">DIRECT")
	for _, p := range a.Status.Paths {
		t.Row(p.Ingress, p.Origin, strings.Join(p.Nodes, " → "), p.Time.String(), p.Direct.String())
	}
	return t.Write(w)
}

func acceleratorState(o *onpath.Accelerator) string {
	for _, c := range o.Status.Conditions {
		if c.Type == "Active" && c.Status == onpath.True {
			return "active"
		}
	}
	return "waits"
}

func nodeRow(o *onpath.Node, age string) []string {
	state := "ready"
	if !o.Status.Ready {
		state = "away"
	}
	if !o.Accepted() {
		state = "waits"
	}
	if o.Spec.Schedulable != nil && !*o.Spec.Schedulable {
		state += ", cordoned"
	}
	if o.Spec.Drain {
		state += ", draining"
	}
	var uplinks []string
	for _, u := range o.Spec.Uplinks {
		uplinks = append(uplinks, u.Device)
	}
	used, has := o.Status.Used, o.Status.Capacity
	return []string{o.Metadata.Name, o.Spec.Cloudlet, state, strings.Join(uplinks, ","),
		fmt.Sprintf("%s/%s", used.CPU, has.CPU), Bytes(uint64(used.Memory)) + "/" + Bytes(uint64(has.Memory)),
		age, trouble(o.Status.Conditions)}
}

// chainState is one word for how far a chain is.
func chainState(c *onpath.Chain) string {
	ready, desired := 0, 0
	for _, e := range c.Status.Elements {
		ready += e.Ready
		desired += e.Desired
	}
	switch {
	case c.Spec.Disabled:
		return "disabled"
	case !c.Status.Active:
		return fmt.Sprintf("starting %d/%d", ready, desired)
	case ready < desired:
		return fmt.Sprintf("active %d/%d", ready, desired)
	}
	return "active"
}

func through(c *onpath.Chain) string {
	var names []string
	for _, e := range c.Spec.Through {
		name := string(e.Deployment) + string(e.Function)
		if e.Mode == onpath.ModeMirror {
			name = "(" + name + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, " → ")
}

// Endpoints is one end of a chain in a few words.
func Endpoints(e onpath.Endpoints) string {
	switch {
	case e.Hosts != "":
		return string(e.Hosts)
	case e.Deployment != "":
		return "deployment " + string(e.Deployment)
	case len(e.Prefixes) > 0:
		return prefixes(e.Prefixes)
	}
	return "any"
}

func prefixes(list []onpath.Prefix) string {
	var out []string
	for i, p := range list {
		if i == 3 && len(list) > 4 {
			return strings.Join(out, ",") + fmt.Sprintf(",… (%d)", len(list))
		}
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

// shortImage leaves out most of a digest, and where the server keeps what was
// pushed to it.
func shortImage(image string) string {
	image, digest, _ := strings.Cut(image, "@sha256:")
	if pushed, ok := strings.CutPrefix(image, onpath.ImageHost+"/"); ok {
		_, image, _ = strings.Cut(pushed, "/") // the tenant has a column
	}
	if digest != "" {
		image += "@" + digest[:min(len(digest), 12)]
	}
	return image
}

// mostRemark is how long a table's message is about what is worth knowing and no
// trouble, in characters; describe has it whole.
const mostRemark = 60

// trouble is the message of the first False condition, else the start of the first
// Unknown one.
func trouble(list []onpath.Condition) string {
	first := func(s onpath.ConditionStatus) string {
		if i := slices.IndexFunc(list, func(c onpath.Condition) bool {
			return c.Status == s && c.Message != "" && c.Reason != onpath.ReasonOrdinaryPath
		}); i >= 0 {
			return list[i].Message
		}
		return ""
	}
	if m := first(onpath.False); m != "" {
		return m
	}
	return shortened(first(onpath.Unknown), mostRemark)
}

// shortened is the beginning of a message, up to the end of a word.
func shortened(text string, most int) string {
	r := []rune(text)
	if len(r) <= most {
		return text
	}
	cut := string(r[:most-1])
	if i := strings.LastIndexByte(cut, ' '); i > 0 {
		cut = cut[:i]
	}
	return strings.TrimRight(cut, " :;,") + "…"
}

// Age is how long ago t was, in one or two units: "3s", "2m10s", "5h", "12d".
func Age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := max(now.Sub(t), 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 10*time.Minute:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// Bytes rounds to three digits: "1.5 GiB" is written 1.5Gi.
func Bytes(n uint64) string { return onpath.Size(n).Rounded() }

// newFlows is how many flows a tenant may begin in a second.
func newFlows(t *onpath.Tenant) string {
	n := t.Spec.MaxNewFlows
	if n == 0 { // written by a version that knew no limit
		n = onpath.DefaultMaxNewFlows(t.Metadata.Name)
	}
	if n < 0 {
		return "no limit"
	}
	return strconv.Itoa(n) + "/s"
}

// leaseTakes is which packets a leased module is given.
func leaseTakes(l *onpath.Lease) string {
	if l.Spec.ServesOnly {
		return ""
	}
	var to []string
	for _, p := range l.Spec.To {
		to = append(to, p.String())
	}
	words := cmp.Or(string(l.Spec.Protocol), "all") + " " + strings.Join(to, ",")
	if l.Spec.Port != 0 {
		words += ":" + strconv.Itoa(int(l.Spec.Port))
	}
	return words
}

// left is how long it is until then; "" without a time.
func left(until, now time.Time) string {
	if until.IsZero() {
		return ""
	}
	return max(until.Sub(now), 0).Round(time.Second).String()
}

// answered is what a service takes: tcp/80,443.
func answered(list []onpath.Selector) string {
	var out []string
	for _, s := range list {
		var ports []string
		for _, p := range s.DestinationPorts {
			ports = append(ports, p.String())
		}
		out = append(out, strings.TrimSuffix(cmp.Or(string(s.Protocol), "any")+"/"+strings.Join(ports, ","), "/"))
	}
	return strings.Join(out, " ")
}

// serves counts the cloudlets in which a service answers.
func serves(o *onpath.Service) string {
	n := 0
	for _, p := range o.Status.Cloudlets {
		if p.Serves {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(o.Status.Cloudlets))
}

package render

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/table"
)

// Describe prints everything about one object: what was asked, how it stands,
// the applies of it that wait for their confirmation, the objects that belong to
// it, and what happened lately.
func Describe(w io.Writer, o onpath.Object, waiting []wire.Unconfirmed, parts []onpath.Object,
	events []*onpath.Event, now time.Time) error {
	k := onpath.KeyOf(o)
	fmt.Fprintf(w, "%s, %s old, version %d\n", k, orUnknown(Age(o.Meta().Created, now)), o.Meta().Version)
	if d, ok := o.(*onpath.Deployment); ok && d.Status.Chain != "" {
		fmt.Fprintf(w, "a part of chain %s: change it there\n", d.Status.Chain)
	}
	for _, line := range Awaits(k, waiting, now) {
		fmt.Fprintln(w, line)
	}
	conditions, elements := status(o)
	if len(conditions) > 0 {
		fmt.Fprintln(w)
		t := table.New("CONDITION", "STATUS", ">SINCE", "REASON", "MESSAGE")
		for _, c := range conditions {
			t.Row(c.Type, string(c.Status), Age(c.Since, now), c.Reason, c.Message)
		}
		if err := t.Write(w); err != nil {
			return err
		}
	}
	switch o := o.(type) {
	case *onpath.Reservation:
		if err := promise(w, &o.Status); err != nil {
			return err
		}
	case *onpath.Service:
		if err := answers(w, o.Status.Cloudlets); err != nil {
			return err
		}
	case *onpath.PrefixClaim:
		if o.Status.Password != "" {
			at := netip.AddrPortFrom(o.Spec.Prefix.Addr(), 80)
			fmt.Fprintf(w, "\nhttp://%s%s has to show\n%s\n", at, onpath.ClaimPath, o.Status.Password)
		}
	}
	if len(elements) > 0 {
		fmt.Fprintln(w)
		t := table.New(">ELEMENT", "DEPLOYMENT", ">READY", "NODES", "MESSAGE")
		for i, e := range elements {
			t.Row(fmt.Sprint(i+1), e.Deployment, fmt.Sprintf("%d/%d", e.Ready, e.Desired), strings.Join(e.Nodes, ","), e.Message)
		}
		if err := t.Write(w); err != nil {
			return err
		}
	}
	if a, ok := o.(*onpath.Accelerator); ok {
		if err := acceleratorPaths(w, a); err != nil {
			return err
		}
	}
	for _, p := range append(parts, o) {
		if i, ok := p.(*onpath.Instance); ok && i.Status.Printed != "" {
			fmt.Fprintf(w, "\n%s printed last: %s\n", i.Metadata.Name, i.Status.Printed)
		}
	}
	if err := lists(w, append(parts, o), now); err != nil {
		return err
	}
	if len(parts) > 0 {
		fmt.Fprintln(w)
		if err := Objects(w, parts[0].ObjectKind(), parts, now, false); err != nil {
			return err
		}
	}
	if err := written(w, o); err != nil {
		return err
	}
	if len(events) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	list := make([]onpath.Object, len(events))
	for i, e := range events {
		list[i] = e
	}
	return Objects(w, onpath.KindEvent, list, now, false)
}

// lists shows which lists of addresses instances have in force.
func lists(w io.Writer, objects []onpath.Object, now time.Time) error {
	t := table.New("INSTANCE", "LIST", ">IN FORCE FOR", "MESSAGE")
	found := false
	for _, o := range objects {
		i, ok := o.(*onpath.Instance)
		if !ok {
			continue
		}
		for _, l := range i.Status.Lists {
			found = true
			t.Row(i.Metadata.Name, l.Type, Age(l.Since, now), l.Message)
		}
	}
	if !found {
		return nil
	}
	fmt.Fprintln(w)
	return t.Write(w)
}

func orUnknown(s string) string {
	if s == "" {
		return "0s"
	}
	return s
}

// written prints labels and spec as YAML.
func written(w io.Writer, o onpath.Object) error {
	var b bytes.Buffer
	if err := manifest.Encode(&b, o); err != nil {
		return err
	}
	fmt.Fprintln(w)
	keep := false
	for line := range strings.Lines(onpath.WithoutPackedLists(b.String())) {
		if !strings.HasPrefix(line, " ") {
			keep = strings.HasPrefix(line, "spec:")
		}
		if keep || strings.HasPrefix(line, "  labels:") {
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		}
	}
	return nil
}

func status(o onpath.Object) ([]onpath.Condition, []onpath.ElementStatus) {
	switch o := o.(type) {
	case *onpath.Cloudlet:
		return o.Status.Conditions, nil
	case *onpath.Node:
		return o.Status.Conditions, nil
	case *onpath.Accelerator:
		return o.Status.Conditions, nil
	case *onpath.Deployment:
		return o.Status.Conditions, nil
	case *onpath.Chain:
		return o.Status.Conditions, o.Status.Elements
	case *onpath.Service:
		return o.Status.Conditions, nil
	case *onpath.PrefixClaim:
		if o.Status.State == "" {
			return nil, nil
		}
		return []onpath.Condition{{Type: "State", Status: onpath.ConditionStatus(o.Status.State), Since: o.Status.Checked,
			Message: o.Status.Evidence}}, nil
	case *onpath.Instance:
		if o.Status.State == "" {
			return nil, nil
		}
		return []onpath.Condition{{Type: "State", Status: onpath.ConditionStatus(o.Status.State), Since: o.Status.Since,
			Message: o.Status.Message}}, nil
	}
	return nil, nil
}

// answers shows where a service answers.
func answers(w io.Writer, places []onpath.ServicePlace) error {
	if len(places) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := table.New("CLOUDLET", "ADDRESSES", ">READY", "ANSWERS")
	for _, p := range places {
		var list []string
		for _, a := range p.Addresses {
			list = append(list, a.String())
		}
		does := "no"
		if p.Serves {
			does = "yes"
		}
		t.Row(p.Cloudlet, strings.Join(list, ","), fmt.Sprint(p.Ready), does)
	}
	return t.Write(w)
}

// Belongs reports whether instance i is one of o's: of a deployment, of a
// service's, of one of a chain's elements, or on a node.
func Belongs(i *onpath.Instance, o onpath.Object) bool {
	m := o.Meta()
	switch o := o.(type) {
	case *onpath.Node:
		return i.Spec.Node == m.Name
	case *onpath.Deployment:
		return i.Metadata.Tenant == m.Tenant && i.Spec.Deployment == m.Name
	case *onpath.Service:
		tenant, name := o.Spec.Deployment.Resolve(m.Tenant)
		return i.Metadata.Tenant == tenant && i.Spec.Deployment == name
	case *onpath.Chain:
		for _, e := range o.Spec.Through {
			ref := e.Deployment
			if ref == "" {
				ref = onpath.Ref(onpath.ShortDeployment(m.Name, e.Function))
			}
			tenant, name := ref.Resolve(m.Tenant)
			if i.Metadata.Tenant == tenant && i.Spec.Deployment == name {
				return true
			}
		}
	}
	return false
}

package render

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/onpath/onpath"
)

// moreColumns are those that only a wide table has.
var moreColumns = map[onpath.Kind][]string{
	onpath.KindTenant:      {"OWN-EBPF"},
	onpath.KindCloudlet:    {">OPERATOR-SHARE"},
	onpath.KindNode:        {"UNDERLAY", "REACHES", "KERNEL", "VERSION", "HOST-IMAGE", "LABELS"},
	onpath.KindPriceList:   {">USE-CPU/H", ">USE-TRAFFIC/GI", ">TIERS"},
	onpath.KindReservation: {">INSTANCES", ">REFUNDED"},
	onpath.KindPrefixClaim: {"PASSWORD"},
	onpath.KindWebhook:     {">SECRET-VERSION"},
	onpath.KindFunction:    {"CPU", "MEMORY"},
	onpath.KindDeployment:  {"CLOUDLETS", "NODES"},
	onpath.KindSecret:      {">CHANGES"},
	onpath.KindService:     {"ADDRESSES"},
	onpath.KindChain:       {"TIER", ">PRIORITY", "CLOUDLETS", ">PATH-ID"},
	onpath.KindMeasurement: {">CHANGE"},
	onpath.KindAccelerator: {"INGRESS", "CONGESTION"},
	onpath.KindInstance:    {"DEPLOYMENT", ">VPORT", "ADDRESSES"},
	onpath.KindLease:       {"USER", "URL", "SHA256"},
}

// moreCells are the cells of those columns.
func moreCells(o onpath.Object) []string {
	switch o := o.(type) {
	case *onpath.Tenant:
		return []string{yesNo(o.Spec.AllowEBPF)}
	case *onpath.Cloudlet:
		return []string{strconv.Itoa(o.Spec.OperatorShare) + "%"}
	case *onpath.Node:
		return []string{o.Spec.Underlay.Address.String(), reaches(o.Status.Conditions), o.Status.Kernel, o.Status.Version,
			yesNo(o.Status.HostImage), labels(o.Metadata.Labels)}
	case *onpath.PriceList:
		return []string{o.Spec.Use.CPU.String(), o.Spec.Use.Traffic.String(), strconv.Itoa(len(o.Spec.Tiers))}
	case *onpath.Reservation:
		return []string{strconv.Itoa(len(o.Status.Places)), o.Status.Refunded.String()}
	case *onpath.Webhook:
		return []string{strconv.Itoa(o.Spec.SecretVersion)}
	case *onpath.PrefixClaim:
		return []string{o.Status.Password}
	case *onpath.Function:
		return []string{o.Spec.Resources.CPU.String(), Bytes(uint64(o.Spec.Resources.Memory))}
	case *onpath.Deployment:
		return []string{strings.Join(o.Spec.Place.Cloudlets, ","), labels(o.Spec.Place.Nodes)}
	case *onpath.Secret:
		return []string{strconv.FormatInt(max(o.Metadata.Generation-1, 0), 10)}
	case *onpath.Service:
		var list []string
		for _, p := range o.Status.Cloudlets {
			for _, a := range p.Addresses {
				list = append(list, p.Cloudlet+"="+a.String())
			}
		}
		return []string{strings.Join(list, ",")}
	case *onpath.Chain:
		return []string{string(o.Spec.Tier), strconv.Itoa(o.Spec.Priority), strings.Join(o.Status.Cloudlets, ","),
			number(uint64(o.Status.Path))}
	case *onpath.Measurement:
		change := onpath.DefaultMeasureChange
		if o.Spec.Change != nil {
			change = *o.Spec.Change
		}
		return []string{strconv.FormatFloat(change*100, 'f', -1, 64) + "%"}
	case *onpath.Accelerator:
		return []string{strings.Join(o.Spec.Ingress, ","), o.Spec.Congestion}
	case *onpath.Instance:
		vports := number(uint64(o.Spec.Vport))
		if o.Spec.Back != 0 {
			vports += "," + number(uint64(o.Spec.Back))
		}
		var addresses []string
		for _, a := range o.Spec.Addresses {
			addresses = append(addresses, a.Addr().String())
		}
		return []string{o.Spec.Deployment, vports, strings.Join(addresses, ",")}
	case *onpath.Lease:
		return []string{o.Spec.User, o.Spec.URL, o.Spec.SHA256}
	}
	return nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// number is "" for 0: not given yet.
func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

func labels(m map[string]string) string {
	var out []string
	for k, v := range m {
		out = append(out, fmt.Sprintf("%s=%s", k, v))
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// reaches is how a node reaches each other one; onpath describe says since when, and why.
func reaches(list []onpath.Condition) string {
	var all []string
	for _, c := range list {
		other, ok := strings.CutPrefix(c.Type, onpath.ConditionTunnel)
		if !ok {
			continue
		}
		word := "NOT"
		if c.Status == onpath.True {
			word = strings.ToLower(c.Reason)
		}
		all = append(all, other+"="+word)
	}
	return strings.Join(all, ",")
}

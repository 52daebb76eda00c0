package plan

import (
	"reflect"
	"slices"

	"github.com/onpath/onpath"
)

// same compares two plans but for their generation. What there is much of, and hardly
// ever changes, is compared field by field: reflect takes ten times as long, which was
// a quarter of all planning.
func same(a, b *onpath.NodePlan) bool {
	x, y := &a.Datapath, &b.Datapath
	return slices.EqualFunc(x.Vports, y.Vports, sameVport) &&
		slices.EqualFunc(x.Tables, y.Tables, sameTable) &&
		slices.EqualFunc(x.Groups, y.Groups, sameGroup) &&
		slices.EqualFunc(x.Paths, y.Paths, samePath) &&
		slices.Equal(x.Peers, y.Peers) && slices.Equal(x.Tenants, y.Tenants) &&
		sameInstances(a.Instances, b.Instances) &&
		reflect.DeepEqual(fewOf(a), fewOf(b))
}

// sameChain compares two statuses; so do the others below.
func sameChain(a, b *onpath.ChainStatus) bool {
	return a.Active == b.Active && slices.EqualFunc(a.Elements, b.Elements, sameElement) && a.Path == b.Path && a.Shape == b.Shape &&
		slices.Equal(a.Cloudlets, b.Cloudlets) && a.Observed == b.Observed && slices.Equal(a.Conditions, b.Conditions) &&
		(a.Scaling == b.Scaling || reflect.DeepEqual(a.Scaling, b.Scaling))
}

func sameElement(a, b onpath.ElementStatus) bool {
	return a.Deployment == b.Deployment && a.Ready == b.Ready && a.Desired == b.Desired && a.Outdated == b.Outdated &&
		a.FunctionGeneration == b.FunctionGeneration && slices.Equal(a.Nodes, b.Nodes) && a.Message == b.Message
}

func sameDeployment(a, b *onpath.DeploymentStatus) bool {
	return a.Desired == b.Desired && a.Ready == b.Ready && a.Outdated == b.Outdated && a.Observed == b.Observed &&
		a.FunctionGeneration == b.FunctionGeneration && a.Chain == b.Chain &&
		(a.Scaled == b.Scaled || reflect.DeepEqual(a.Scaled, b.Scaled)) && slices.Equal(a.Conditions, b.Conditions)
}

// fewOf is the plan without its generation and what same compares by itself.
func fewOf(p *onpath.NodePlan) onpath.NodePlan {
	few := *p
	few.Generation, few.Datapath.Generation = 0, 0
	d := &few.Datapath
	d.Vports, d.Tables, d.Groups, d.Paths, d.Peers, d.Tenants, few.Instances = nil, nil, nil, nil, nil, nil, nil
	return few
}

func sameInstances(a, b []onpath.InstancePlan) bool {
	for k := range a {
		if len(a) != len(b) || !sameInstance(&a[k], &b[k]) {
			return false
		}
	}
	return len(a) == len(b)
}

func sameInstance(a, b *onpath.InstancePlan) bool {
	return a.Name == b.Name && a.Tenant == b.Tenant && a.Deployment == b.Deployment && a.Function == b.Function && a.UID == b.UID &&
		a.Vport == b.Vport && a.Back == b.Back && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Serves, b.Serves) &&
		a.MTU == b.MTU && a.Idle == b.Idle && a.Draining == b.Draining && a.Reservation == b.Reservation &&
		a.UserNamespace == b.UserNamespace && a.Pair.Equal(b.Pair) &&
		reflect.DeepEqual(a.OnDemand, b.OnDemand) && reflect.DeepEqual(&a.Spec, &b.Spec)
}

func sameVport(a, b onpath.Vport) bool {
	return a.ID == b.ID && a.Kind == b.Kind && a.State == b.State &&
		a.Peer == b.Peer && a.Away == b.Away && a.Backup == b.Backup &&
		a.Instance == b.Instance && a.Tenant == b.Tenant && a.Other == b.Other &&
		a.MAC == b.MAC && a.HostMAC == b.HostMAC && a.Attach == b.Attach && a.Packets == b.Packets &&
		slices.Equal(a.Own, b.Own) && a.Routes == b.Routes && a.Entry == b.Entry &&
		a.Tells == b.Tells && a.Mirror == b.Mirror && a.Emit == b.Emit && a.MaxFlows == b.MaxFlows &&
		a.RateIn == b.RateIn && a.RateOut == b.RateOut && a.Hold == b.Hold && a.Asleep == b.Asleep && a.Alone == b.Alone
}

func sameTable(a, b onpath.Table) bool {
	return a.ID == b.ID && a.Miss == b.Miss && slices.EqualFunc(a.Rules, b.Rules, sameRule)
}

func sameRule(a, b onpath.Rule) bool {
	return a.Action == b.Action && a.Path == b.Path && a.Reverse == b.Reverse &&
		a.Match.Family == b.Match.Family &&
		slices.Equal(a.Match.Src, b.Match.Src) && slices.Equal(a.Match.Dst, b.Match.Dst) &&
		slices.Equal(a.Match.Protocol, b.Match.Protocol) &&
		slices.Equal(a.Match.SrcPorts, b.Match.SrcPorts) && slices.Equal(a.Match.DstPorts, b.Match.DstPorts)
}

func sameGroup(a, b onpath.Group) bool {
	return a.ID == b.ID && a.Path == b.Path && a.Reverse == b.Reverse && a.Mode == b.Mode &&
		slices.Equal(a.Members, b.Members) && a.Then == b.Then && a.Back == b.Back &&
		a.Lost == b.Lost && a.None == b.None && a.Together == b.Together && slices.EqualFunc(a.Weights, b.Weights, sameRow)
}

func sameRow(a, b onpath.WeightRow) bool {
	return a.From == b.From && slices.Equal(a.Weights, b.Weights)
}

func samePath(a, b onpath.Path) bool {
	return a.ID == b.ID && a.Chain == b.Chain && a.Tenant == b.Tenant && a.MTU == b.MTU &&
		a.Began.Equal(b.Began) && a.Adopt == b.Adopt && a.Cut == b.Cut && a.Strict == b.Strict && a.Forward == b.Forward && a.Side == b.Side &&
		a.Idle == b.Idle && a.MaxFlows == b.MaxFlows && slices.Equal(a.Elements, b.Elements) &&
		a.Ended.Equal(b.Ended) && a.Closed == b.Closed && a.Until.Equal(b.Until)
}

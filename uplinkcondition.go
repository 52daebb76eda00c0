package onpath

import (
	"slices"
	"strings"
)

// ConditionUplink, with an uplink's name behind it, is the type of a node's condition that
// says whether the uplink is as it should be.
const ConditionUplink = "Uplink/"

// The reasons why an uplink is not as it should be.
const (
	ReasonUplinkDown       = "Down"
	ReasonRenamed          = "Renamed"          // its device has another name now
	ReasonPastHostFirewall = "PastHostFirewall" // the host's firewall changed while packets were steered
	ReasonDeviceMissing    = "DeviceMissing"
	ReasonNotEthernet      = "NotEthernet" // frames of its device have no Ethernet header
	ReasonOtherVRF         = "OtherVRF"    // its device and another uplink's are in different VRFs
	ReasonHostFirewall     = "HostFirewall"
	ReasonOtherUplink      = "OtherUplink" // another uplink cannot be used
)

// ReasonUnsteered is the reason of a chain's condition Active that is false because of an
// uplink (Unsteered).
const ReasonUnsteered = "Unsteered"

// UplinkReason is a reason why an uplink is not as it should be.
type UplinkReason struct {
	Reason string
	// Steers: no packet comes in there that the chains in force do not get.
	Steers bool
}

// UplinkReasons are all of them.
func UplinkReasons() []UplinkReason {
	return []UplinkReason{
		{ReasonUplinkDown, true}, {ReasonRenamed, true}, {ReasonPastHostFirewall, true}, {ReasonDeviceMissing, true},
		{ReasonNotEthernet, false}, {ReasonOtherVRF, false}, {ReasonHostFirewall, false}, {ReasonOtherUplink, false},
	}
}

// Unsteered are, of a node's conditions, those of the uplinks at which chains do not get
// all that they select.
func Unsteered(conditions []Condition) (out []Condition) {
	for _, c := range conditions {
		if strings.HasPrefix(c.Type, ConditionUplink) && c.Status == False &&
			!slices.Contains(UplinkReasons(), UplinkReason{c.Reason, true}) {
			out = append(out, c)
		}
	}
	return out
}

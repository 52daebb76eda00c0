package onpath

// PriceList says what capacity and use cost. There is one, named default;
// without it all is free. A reservation pays by the list that holds when it is
// admitted; each change of the list is a new generation.
type PriceList struct {
	TypeMeta
	Metadata Metadata      `json:"metadata"`
	Spec     PriceListSpec `json:"spec"`
}

// DefaultPriceList is the name of the price list.
const DefaultPriceList = "default"

// PriceListSpec holds the prices, in units of the currency.
type PriceListSpec struct {
	// Currency is for people, such as EUR.
	Currency string `json:"currency,omitempty"`
	// Hour is what reserved capacity costs for an hour.
	Hour UnitPrices `json:"hour,omitzero"`
	// Tiers raise Hour with a tenant's share of a cloudlet, instant by instant, by
	// rising Above: what a tenant has promised above a share costs more, what lies
	// below does not (PacketCloud §3.6).
	Tiers []PriceTier `json:"tiers,omitempty"`
	// Use is what is paid afterwards, by what instances used.
	Use UsePrices `json:"use,omitzero"`
}

// UnitPrices are prices of one unit of each resource.
type UnitPrices struct {
	CPU     Money `json:"cpu,omitempty"`     // of a core
	Memory  Money `json:"memory,omitempty"`  // of 1 GiB
	Disk    Money `json:"disk,omitempty"`    // of 1 GiB
	Network Money `json:"network,omitempty"` // of 1 Gbit/s
}

// PriceTier is the part of a cloudlet's capacity above a share, resource by resource.
type PriceTier struct {
	Above   int `json:"above"`   // percent of the cloudlet's capacity, less the operator's share
	Percent int `json:"percent"` // of the prices in Hour
}

// UsePrices are prices of what is used.
type UsePrices struct {
	CPU     Money `json:"cpu,omitempty"`     // of an hour of one core's time
	Traffic Money `json:"traffic,omitempty"` // of 1 GiB that chains led into instances
}

// MaxTiers bounds PriceListSpec.Tiers.
const MaxTiers = 8

// Meta implements Object.
func (p *PriceList) Meta() *Metadata { return &p.Metadata }

// ObjectKind implements Object.
func (p *PriceList) ObjectKind() Kind { return KindPriceList }

// Validate implements Object.
func (p *PriceList) Validate() error {
	v := begin(p, &p.TypeMeta)
	s := &p.Spec
	if p.Metadata.Name != DefaultPriceList && p.Metadata.Name != "" {
		v.add("metadata.name", "write "+DefaultPriceList, "there is one price list, and its name is %s", DefaultPriceList)
	}
	v.text("spec.currency", s.Currency, 20)
	for _, f := range []struct {
		field string
		price Money
	}{
		{"hour.cpu", s.Hour.CPU}, {"hour.memory", s.Hour.Memory}, {"hour.disk", s.Hour.Disk}, {"hour.network", s.Hour.Network},
		{"use.cpu", s.Use.CPU}, {"use.traffic", s.Use.Traffic},
	} {
		quantity(v, "spec."+f.field, f.price, 0, 1_000_000*Millionths)
	}
	if len(s.Tiers) > MaxTiers {
		v.add("spec.tiers", "", "%d tiers are too many; at most %d", len(s.Tiers), MaxTiers)
		return v.err()
	}
	before := PriceTier{0, 100}
	for i, t := range s.Tiers {
		at := index("spec.tiers", i)
		v.number(at+".above", t.Above, 1, 99)
		v.number(at+".percent", t.Percent, 100, 100_000)
		if t.Above <= before.Above || t.Percent < before.Percent {
			v.add(at, "write tiers by rising share, each at least as dear as the one before", "does not lie above the tier before")
		}
		before = t
	}
	return v.err()
}

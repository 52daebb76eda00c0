package datapathtest

// Cases lists the exam, in the order in which Run takes it.
func Cases() []Case {
	return []Case{
		{"untouched", "what no rule selects is the kernel's: forwarded, not counted, no entry", untouched},
		{"routed", "one routed element is crossed there and back, by every protocol", routed},
	}
}

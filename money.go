package onpath

import (
	"fmt"
	"math"
	"strings"
)

// Money is an amount in millionths of the price list's currency. It is never a
// fraction of binary digits: sums are exact, and who divides says how it rounds.
type Money int64

// Millionths make one unit of the currency.
const Millionths Money = 1_000_000

// MarshalText writes the shortest form that UnmarshalText reads.
func (m Money) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// String is "12.5", "-0.000001" or "3".
func (m Money) String() string {
	sign, u := "", uint64(m)
	if m < 0 {
		sign, u = "-", -u
	}
	s := fmt.Sprintf("%s%d.%06d", sign, u/uint64(Millionths), u%uint64(Millionths))
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// Cents is m with two decimals, rounded half to even, as invoices show it.
func (m Money) Cents() string {
	const cent = 10_000
	q, r := m/cent, m%cent
	if r < 0 {
		q, r = q-1, r+cent
	}
	if r > cent/2 || r == cent/2 && q%2 != 0 {
		q++
	}
	sign, u := "", uint64(q)
	if q < 0 {
		sign, u = "-", -u
	}
	return fmt.Sprintf("%s%d.%02d", sign, u/100, u%100)
}

// UnmarshalText reads a decimal number with at most six decimals.
func (m *Money) UnmarshalText(b []byte) error {
	s := string(b)
	bad := fmt.Errorf("%q is not an amount of money (write 12.50, with at most six decimals)", s)
	digits, negative := strings.CutPrefix(s, "-")
	whole, part, point := strings.Cut(digits, ".")
	if whole == "" || point && part == "" || len(part) > 6 {
		return bad
	}
	var v uint64
	for _, c := range whole + part + strings.Repeat("0", 6-len(part)) {
		if c < '0' || c > '9' {
			return bad
		}
		if v > (math.MaxInt64-9)/10 {
			return fmt.Errorf("%q is more money than can be counted", s)
		}
		v = v*10 + uint64(c-'0')
	}
	*m = Money(v)
	if negative {
		*m = -*m
	}
	return nil
}

// UnmarshalJSON also takes a plain number.
func (m *Money) UnmarshalJSON(b []byte) error { return textOrNumber(b, m) }

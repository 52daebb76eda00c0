package onpath

import "time"

// Posting is one entry of the ledger: an amount that goes from one account to another.
// It is written in the transaction of its cause and never changed.
type Posting struct {
	Tenant string `json:"tenant"`
	// Number counts the tenant's postings, from 1 without gaps.
	Number int64       `json:"number"`
	At     time.Time   `json:"at"`
	Kind   PostingKind `json:"kind"`
	// Debit pays, Credit is paid: AccountOf a tenant, AccountIncome or AccountCash.
	Debit  string `json:"debit"`
	Credit string `json:"credit"`
	Amount Money  `json:"amount"` // more than 0
	Cause  string `json:"cause"`  // for people
	// Reservation or Instance that it is about, in the tenant.
	Reservation string `json:"reservation,omitempty"`
	Instance    string `json:"instance,omitempty"`
	// Reference names what the operator entered; it is unique in the tenant.
	Reference string `json:"reference,omitempty"`
	// Reverses is the number of the posting that a correction takes back.
	Reverses int64 `json:"reverses,omitempty"`
	// Prices is the version of the price list by which Amount was found.
	Prices int64 `json:"prices,omitempty"`
	// Segments are what a charge pays for, or what a refund or compensation gives back.
	Segments []PaidSegment `json:"segments,omitempty"`
	// Paid and Begin of a refund: when Segments were paid, and would have begun.
	Paid  time.Time `json:"paid,omitzero"`
	Begin time.Time `json:"begin,omitzero"`
	// From, Until, CPU and Bytes are what use is charged for.
	From  time.Time     `json:"from,omitzero"`
	Until time.Time     `json:"until,omitzero"`
	CPU   time.Duration `json:"cpu,omitempty"` // nanoseconds of processor time
	Bytes uint64        `json:"bytes,omitempty"`
}

// PostingKind says why money moved.
type PostingKind string

// The kinds of postings.
const (
	PostingCredit       PostingKind = "credit"       // the operator took money in
	PostingCharge       PostingKind = "charge"       // for reserved capacity
	PostingRefund       PostingKind = "refund"       // of a part that the tenant gave up
	PostingCompensation PostingKind = "compensation" // for what the pool failed to deliver
	PostingUse          PostingKind = "use"          // of processor time and traffic
	PostingPayout       PostingKind = "payout"       // the operator gave money back
	PostingCorrection   PostingKind = "correction"   // of a credit or payout that was a mistake
)

// MoneyEntry is what the operator enters into a tenant's account.
type MoneyEntry struct {
	Kind PostingKind `json:"kind" enum:"credit,payout,correction"`
	// Amount of a credit or payout, above 0. A correction moves what it reverses.
	Amount Money `json:"amount,omitempty"`
	// Reference names a credit or payout, such as the number of a transfer. Who enters it
	// again with the same amount changes nothing.
	Reference string `json:"reference,omitempty" maxLength:"100"`
	// Reverses is the number of the posting that a correction takes back.
	Reverses int64  `json:"reverses,omitempty"`
	Cause    string `json:"cause,omitempty" maxLength:"200"` // for people
}

// The operator's accounts: what it holds for tenants, and what it earned.
const (
	AccountCash   = "cash"
	AccountIncome = "income"
)

// AccountOf is a tenant's account.
func AccountOf(tenant string) string { return "tenant/" + tenant }

// PaidSegment is what is paid for from one time to another.
type PaidSegment struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Tiers are the amounts below the price list's first tier, in it, in the next …
	Tiers []Resources `json:"tiers"`
}

// Account is what a tenant has.
type Account struct {
	Tenant   string `json:"tenant"`
	Balance  Money  `json:"balance"`
	Currency string `json:"currency,omitempty"`
	Postings int64  `json:"postings"` // so far
}

// MaxPostings bounds a PostingPage.
const MaxPostings = 1000

// PostingPage is a part of a tenant's postings.
type PostingPage struct {
	Postings []Posting `json:"postings"` // by number
	// Next is the number of the first one of the next page; 0: this was the last.
	Next int64 `json:"next,omitempty"`
}

// Invoice sums a tenant's postings of one month up.
type Invoice struct {
	Tenant   string        `json:"tenant"`
	Month    string        `json:"month"` // 2026-11, in UTC
	Currency string        `json:"currency,omitempty"`
	Lines    []InvoiceLine `json:"lines"`
	Total    Money         `json:"total"`   // charges less what was given back
	Credits  Money         `json:"credits"` // paid in
	Opening  Money         `json:"opening"` // balance at the beginning of the month
	Closing  Money         `json:"closing"`
}

// InvoiceLine is what one reservation, or instances outside of reservations, cost.
type InvoiceLine struct {
	Reservation string        `json:"reservation,omitempty"`
	Charged     Money         `json:"charged"`
	Use         Money         `json:"use"`
	Refunded    Money         `json:"refunded"`
	Compensated Money         `json:"compensated"`
	CPU         time.Duration `json:"cpu,omitempty"` // nanoseconds of processor time
	Bytes       uint64        `json:"bytes,omitempty"`
	Total       Money         `json:"total"`
}

// LedgerCheck is what recomputing a ledger found.
type LedgerCheck struct {
	Postings int      `json:"postings"`
	Tenants  int      `json:"tenants"`
	Days     int      `json:"days,omitempty"`  // closed ones, with a file each
	Wrong    []string `json:"wrong,omitempty"` // at most 100
}

// LedgerDay is a closed day of the ledger: its postings, and the reservations that were over
// by its end, are in a file of the server's folder.
type LedgerDay struct {
	Day          string `json:"day"`    // 2026-11-26, in UTC
	File         string `json:"file"`   // its name in the folder ledger
	SHA256       string `json:"sha256"` // of its first line, which has the hashes of the rest
	Postings     int    `json:"postings"`
	Reservations int    `json:"reservations"`
	Bytes        int64  `json:"bytes"`
	// Missing: the server's folder lacks the file.
	Missing bool `json:"missing,omitempty"`
}

// CapacityView is what nodes have promised over time.
type CapacityView struct {
	From  time.Time      `json:"from"`
	Until time.Time      `json:"until"`
	Nodes []NodeCapacity `json:"nodes"`
}

// NodeCapacity is one node's part: Total = Share + Promised + Free at each instant.
type NodeCapacity struct {
	Node     string         `json:"node"`
	Cloudlet string         `json:"cloudlet"`
	Usable   bool           `json:"usable"` // may take reservations now
	Total    Resources      `json:"total"`
	Share    Resources      `json:"share"` // the operator's
	Steps    []CapacityStep `json:"steps"`
}

// CapacityStep is what is promised and free from an instant on.
type CapacityStep struct {
	At       time.Time `json:"at"`
	Promised Resources `json:"promised"`
	Free     Resources `json:"free"`
}

// Quote is an answer to a request for a reservation.
type Quote struct {
	Reservation string           `json:"reservation"` // tenant/name
	State       ReservationState `json:"state"`       // quoted, confirmed, declined, cancelled
	Reason      string           `json:"reason,omitempty"`
	Cloudlet    string           `json:"cloudlet,omitempty"`
	Places      []ReservedPlace  `json:"places,omitempty"`
	Price       Money            `json:"price"`            // to be paid now
	Refund      Money            `json:"refund,omitempty"` // to be given back now
	Currency    string           `json:"currency,omitempty"`
	// Fits is when the reservation could begin that does not fit now; zero: never.
	Fits time.Time `json:"fits,omitzero"`
	// Holds is from when a growth holds that has instances move first.
	Holds time.Time `json:"holds,omitzero"`
	Notes []string  `json:"notes,omitempty"`
}

// Promise is a node's answer.
type Promise struct {
	Kept bool   `json:"kept"`
	Why  string `json:"why,omitempty"` // it cannot be kept
}

// PromiseRequest asks a node whether it can keep a promise.
type PromiseRequest struct {
	// Promised is the most that the node will have promised at an instant.
	Promised Resources `json:"promised"`
	// Declared is the capacity in its Node object; parts that are zero are measured.
	Declared Resources `json:"declared"`
}

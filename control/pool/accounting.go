package pool

import (
	"log/slog"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
)

// accounting is what tenants have and owe, and by what prices.
type accounting struct {
	log      *slog.Logger
	accounts map[string]*ledger.Book // by owners.account; without postings that are not written
	owners   owners
	spent    map[string]onpath.Account // accounts as they will be once the groups are written
	entering map[string]bool           // references of money that is being entered
	billed   map[string]billed         // how far instances' meters are paid for, by UID
	prices   prices
	lists    map[int64]*onpath.PriceListSpec // price lists by version
	kept     map[int64]bool                  // versions of those that are in the ledger
}

// clear leaves what is read from the store empty.
func (ac *accounting) clear() {
	ac.accounts, ac.spent, ac.billed = map[string]*ledger.Book{}, map[string]onpath.Account{}, map[string]billed{}
	ac.entering, ac.owners.former = map[string]bool{}, map[string][]time.Time{}
	ac.prices, ac.lists, ac.kept = prices{}, map[int64]*onpath.PriceListSpec{noList: {}}, map[int64]bool{}
}

// takeUp takes up the books that a group wrote.
func (ac *accounting) takeUp(books map[string]*ledger.Book, revision int64) {
	for tenant, b := range books {
		ac.accounts[tenant] = &ledger.Book{Account: b.Account, Version: revision}
		if ac.spent[tenant].Postings == b.Account.Postings {
			delete(ac.spent, tenant)
		}
		for _, x := range b.Added() {
			if x.Prices != 0 {
				ac.kept[x.Prices] = true
			}
		}
	}
}

package api_test

import (
	"net/netip"

	"github.com/onpath/onpath/api/wire"
)

type clientFlow = wire.Flow

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

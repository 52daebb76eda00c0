package fake

import (
	"testing"

	"github.com/onpath/onpath/datapath/datapathtest"
)

func TestExam(t *testing.T) {
	datapathtest.Run(t, func(t *testing.T) datapathtest.Harness { return newHarness(t) })
}

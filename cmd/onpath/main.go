// Command onpath runs chains of in-network functions. Package cli has its commands.
package main

import (
	"os"

	"github.com/onpath/onpath/cli"
)

// version is set by the linker (-X main.version=…).
var version = ""

func main() { os.Exit(cli.Main(version)) }

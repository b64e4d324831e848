package handshake_test

import (
	"context"
	"fmt"

	"octet/handshake"
)

// One handshaking thread against four, and where the time of the four goes.
func Example() {
	ctx := context.Background()
	for _, policy := range []handshake.Policy{handshake.Serial, handshake.Parallel} {
		cfg := handshake.Default()
		cfg.Policy = policy
		device, err := handshake.New(cfg)
		if err != nil {
			fmt.Println(err)
			return
		}
		up, err := device.BringUp(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(policy, up.Broadcast, "+", up.Boot, "+", up.Service, "=", up.Total)
		if policy == handshake.Parallel {
			for _, class := range handshake.Classes() {
				use := up.Threads[up.Slowest].ByClass[class]
				fmt.Printf("%-12v %3d %v\n", class, use.Count, use.Time)
			}
		}
		if err := device.Shutdown(ctx); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// serial 35.378µs + 11µs + 217.224µs = 263.602µs
	// parallel 9.134µs + 11µs + 54.306µs = 74.44µs
	// store         54 2.7µs
	// barrier       55 21.23µs
	// load          36 1.476µs
	// hit           36 108ns
	// window store  36 720ns
	// window load    0 0s
	// flight        36 37.206µs
	// boot           1 11µs
	// lost           0 0s
}

package compute

import (
	"strings"
	"testing"
)

func TestGroupRuleCheck(t *testing.T) { // contract: U-14
	for _, tt := range []struct {
		rule GroupRule
		want string
	}{
		{GroupRule{Kind: GroupSpread, Level: LevelRack, Strict: true}, ""},
		{GroupRule{Kind: GroupCluster, Level: LevelZone}, ""},
		{GroupRule{Kind: GroupPartition, Level: LevelPower, Strict: true, Partitions: 3}, ""},
		{GroupRule{Kind: GroupSpread, Level: "room"}, "the level"},
		{GroupRule{Kind: "near", Level: LevelNode}, "the kind"},
		{GroupRule{Kind: GroupSpread, Level: LevelNode, Partitions: 2}, "only a partition group"},
		{GroupRule{Kind: GroupPartition, Level: LevelNode, Strict: true, Partitions: 1}, "2 to 7"},
		{GroupRule{Kind: GroupPartition, Level: LevelNode, Partitions: 2}, "always strict"},
	} {
		err := tt.rule.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %q", tt.rule, err, tt.want)
		}
	}
}

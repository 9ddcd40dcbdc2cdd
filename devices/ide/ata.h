// The ATA register interface in numbers: names as in ATA/ATAPI-6 and ATA8-ACS.
#pragma once

#include <cstdint>

namespace spindle::ide {

inline constexpr uint32_t kSectorBytes = 512;
inline constexpr uint32_t kSectorShift = 9;
inline constexpr uint64_t kMaxLba28Sectors = 0x0fffffff;  // words 60-61 hold no more
inline constexpr uint64_t kMaxLba48Sectors = 0x0000ffffffffffff;

// The CHS translation after power-on, and how much of a disk any translation reaches: 16,383 cylinders of
// the default one (ATA/ATAPI-5, 6.2.1).
inline constexpr uint8_t kDefaultHeads = 16;
inline constexpr uint8_t kDefaultSectorsPerTrack = 63;
inline constexpr uint64_t kMaxChsSectors = 16383ull * kDefaultHeads * kDefaultSectorsPerTrack;
inline constexpr uint64_t kMaxCylinders = 65535;  // word 54 has 16 bits, and so has the address

// Command block, by port offset (ATA/ATAPI-6, 7). Feature is read as Error, Command as Status.
inline constexpr unsigned kData = 0;
inline constexpr unsigned kError = 1;
inline constexpr unsigned kFeatures = 1;
inline constexpr unsigned kSectorCount = 2;
inline constexpr unsigned kLbaLow = 3;
inline constexpr unsigned kLbaMid = 4;
inline constexpr unsigned kLbaHigh = 5;
inline constexpr unsigned kDevice = 6;
inline constexpr unsigned kStatus = 7;
inline constexpr unsigned kCommand = 7;

// Status.
inline constexpr uint8_t kErr = 1u << 0;
inline constexpr uint8_t kDrq = 1u << 3;
inline constexpr uint8_t kDsc = 1u << 4;  // "seek complete" until ATA-3; drives and QEMU still show it
inline constexpr uint8_t kDf = 1u << 5;
inline constexpr uint8_t kDrdy = 1u << 6;
inline constexpr uint8_t kBsy = 1u << 7;
inline constexpr uint8_t kReady = kDrdy | kDsc;

// Error. Bit 6 is UNC for reads and WP for writes.
inline constexpr uint8_t kAbrt = 1u << 2;
inline constexpr uint8_t kIdnf = 1u << 4;
inline constexpr uint8_t kUnc = 1u << 6;
inline constexpr uint8_t kWp = 1u << 6;
inline constexpr uint8_t kDiagnosticPassed = 0x01;

// Device.
inline constexpr uint8_t kDeviceHead = 0x0f;
inline constexpr uint8_t kDeviceDev = 1u << 4;
inline constexpr uint8_t kDeviceLba = 1u << 6;

// Device Control.
inline constexpr uint8_t kControlNien = 1u << 1;
inline constexpr uint8_t kControlSrst = 1u << 2;
inline constexpr uint8_t kControlHob = 1u << 7;

inline constexpr uint8_t kDeviceReset = 0x08;  // of packet devices
inline constexpr uint8_t kExecuteDeviceDiagnostic = 0x90;

// SET FEATURES subcommands.
inline constexpr uint8_t kFeatureEnableWriteCache = 0x02;
inline constexpr uint8_t kFeatureSetTransferMode = 0x03;
inline constexpr uint8_t kFeatureDisableLookAhead = 0x55;
inline constexpr uint8_t kFeatureDisableRevert = 0x66;
inline constexpr uint8_t kFeatureDisableWriteCache = 0x82;
inline constexpr uint8_t kFeatureEnableLookAhead = 0xaa;
inline constexpr uint8_t kFeatureEnableRevert = 0xcc;

// Transfer modes as SET FEATURES 03h takes them in the Count register.
inline constexpr uint8_t kModePioDefault = 0x00;
inline constexpr uint8_t kModePioNoIordy = 0x01;
inline constexpr uint8_t kModePio = 0x08;
inline constexpr uint8_t kModeMultiwordDma = 0x20;
inline constexpr uint8_t kModeUltraDma = 0x40;
inline constexpr uint8_t kHighestPio = 4;
inline constexpr uint8_t kHighestMultiwordDma = 2;
inline constexpr uint8_t kHighestUltraDma = 5;

// SMART: Features, the key in LBA Mid and High (which RETURN STATUS changes if the drive fails), the choices
// for autosave in Count, the logs in LBA Low.
inline constexpr uint8_t kSmart = 0xb0;
inline constexpr uint8_t kSmartReadData = 0xd0;
inline constexpr uint8_t kSmartReadThresholds = 0xd1;
inline constexpr uint8_t kSmartAutosave = 0xd2;
inline constexpr uint8_t kSmartReadLog = 0xd5;
inline constexpr uint8_t kSmartEnable = 0xd8;
inline constexpr uint8_t kSmartDisable = 0xd9;
inline constexpr uint8_t kSmartReturnStatus = 0xda;
inline constexpr uint8_t kSmartKeyMid = 0x4f;
inline constexpr uint8_t kSmartKeyHigh = 0xc2;
inline constexpr uint8_t kSmartFailingMid = 0xf4;
inline constexpr uint8_t kSmartFailingHigh = 0x2c;
inline constexpr uint8_t kSmartAutosaveOff = 0x00;
inline constexpr uint8_t kSmartAutosaveOn = 0xf1;
inline constexpr uint8_t kSmartLogDirectory = 0x00;
inline constexpr uint8_t kSmartErrorLog = 0x01;
inline constexpr uint8_t kSmartSelfTestLog = 0x06;

// CHECK POWER MODE results.
inline constexpr uint8_t kPowerStandby = 0x00;
inline constexpr uint8_t kPowerIdle = 0x80;
inline constexpr uint8_t kPowerActive = 0xff;

// Bus master IDE, per channel (PIIX4 datasheet, "Bus Master IDE I/O registers").
inline constexpr unsigned kBmCommand = 0;
inline constexpr unsigned kBmStatus = 2;
inline constexpr unsigned kBmTable = 4;
inline constexpr unsigned kBmChannelBytes = 8;
inline constexpr uint8_t kBmStart = 1u << 0;
inline constexpr uint8_t kBmToMemory = 1u << 3;
inline constexpr uint8_t kBmActive = 1u << 0;
inline constexpr uint8_t kBmError = 1u << 1;
inline constexpr uint8_t kBmInterrupt = 1u << 2;
inline constexpr uint8_t kBmDriveCapable = 0x60;

}  // namespace spindle::ide
